from __future__ import annotations

from pathlib import Path

import pytest

from conduit_dagster.config import Project
from conduit_dagster.state.database import open_database


def project(folder: Path, text: str | None = None, **env: str) -> Project:
    if text is not None:
        (folder / "conduit.yaml").write_text(text)
    return Project.find(folder, env)


def places(found: Project) -> list[tuple[str, str, int, int, str]]:
    return [(f.code, Path(f.file).name, f.line, f.column, f.path) for f in found.findings]


@pytest.mark.parametrize("name", ["of%41ll", "what?x=1", "a #1+b 'c' é"])
@pytest.mark.parametrize("settings", ["", "state: {url: sqlite:///.conduit/state.db}\n"])
def test_the_state_store_is_in_the_project_whatever_its_folder_is_called(
    tmp_path: Path, name: str, settings: str
) -> None:
    root = tmp_path / name
    root.mkdir()
    (root / "conduit.yaml").write_text(settings)
    database = open_database(Project.find(root, {}).state_url)
    database.dispose()
    assert (root / ".conduit" / "state.db").exists()
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_the_nearest_parent_with_settings_is_the_root(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "conduit.yaml").write_text("")
    (tmp_path / "a" / "conduit.yaml").write_text("")
    assert Project.find(tmp_path / "a" / "b", {}).root == tmp_path / "a"


def test_without_settings_the_start_is_the_root(tmp_path: Path) -> None:
    found = project(tmp_path)
    assert (found.root, found.findings) == (tmp_path, ())
    assert found.pipelines_path == tmp_path / "pipelines"
    assert found.state_url == f"sqlite:///{tmp_path}/.conduit/state.db"
    assert found.staging_url == str(tmp_path / ".conduit" / "staging")
    assert (found.settings.spark.url, found.settings.state.lease) == ("local[*]", 10.0)
    assert found.settings.recovery.max_delay == 600.0


@pytest.mark.parametrize(
    "text",
    [
        "pipelines.path: p\npipelines.error-recovery.max-retries: 3\nspark.conf.spark.a.b: 1\nlog.level: debug\n",
        "pipelines: {path: p, error-recovery: {max-retries: 3}}\nspark: {conf: {spark.a.b: 1}}\nlog: {level: debug}\n",
        "pipelines: {path: p}\npipelines.error-recovery: {max-retries: 3}\n"
        "spark.conf: {spark: {a.b: 1}}\nlog.level: debug\n",
        "pipelines.path: p\nrecovery: {max-retries: 3}\nspark: {conf.spark.a.b: 1}\nlog.level: debug\n",
    ],
)
def test_dotted_and_nested_keys(tmp_path: Path, text: str) -> None:
    found = project(tmp_path, text)
    assert found.findings == ()
    settings = found.settings
    assert (settings.pipelines.path, settings.recovery.max_retries) == ("p", 3)
    assert (settings.spark.conf, settings.log.level) == ({"spark.a.b": "1"}, "debug")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("spark: shared\nspark.conf: {spark.driver.memory: 4g}\n", 2),
        ("spark.conf: {spark.driver.memory: 4g}\nspark: shared\n", 2),
        ("spark: {url: shared}\nspark.url: local[2]\n", 2),
        ("\nstate.lease: 5s\nstate: {lease: 20s}\n", 3),
        ("recovery: {max-retries: 3}\npipelines: {error-recovery: {max-retries: 7}}\n", 2),
    ],
)
def test_a_setting_that_another_excludes(tmp_path: Path, text: str, line: int) -> None:
    (finding,) = project(tmp_path, text).findings
    assert (finding.code, finding.line) == ("config.key_duplicate", line)


def test_an_empty_section_excludes_nothing(tmp_path: Path) -> None:
    for text in ("spark:\nspark.url: local[2]\n", "spark.url: local[2]\nspark:\n"):
        found = project(tmp_path, text)
        assert (found.findings, found.settings.spark.url) == ((), "local[2]")


def test_the_environment_wins(tmp_path: Path) -> None:
    found = project(
        tmp_path,
        "pipelines.path: p\nstate.lease: 1s\nspark.url: local\n",
        CONDUIT_PIPELINES_PATH="q",
        CONDUIT_PIPELINES="r",
        CONDUIT_STATE_LEASE="7s",
        CONDUIT_STATE_URL="postgresql://x",
        CONDUIT_SPARK_URL="sc://y",
        CONDUIT_PIPELINES_ERROR_RECOVERY_MAX_RETRIES="4",
        CONDUIT_PIPELINES_EXIT_ON_DEGRADED="true",
        CONDUIT_HOME="home",
    )
    settings = found.settings
    assert found.findings == ()
    assert (settings.pipelines.path, settings.state.lease, found.state_url) == ("q", 7.0, "postgresql://x")
    assert (settings.spark.url, settings.recovery.max_retries, settings.pipelines.exit_on_degraded) == (
        "sc://y",
        4,
        True,
    )
    assert found.home == tmp_path / "home"


def test_the_short_name_of_the_pipelines_folder(tmp_path: Path) -> None:
    assert project(tmp_path, CONDUIT_PIPELINES="r").pipelines_path == tmp_path / "r"


def test_variables_in_the_file(tmp_path: Path) -> None:
    found = project(tmp_path, "state.url: $DB\nspark.url: $NOPE\n", DB="postgresql://x")
    assert found.state_url == "postgresql://x"
    assert places(found) == [("config.env_unset", "conduit.yaml", 2, 12, "/spark.url")]


def test_an_unset_variable_is_the_only_finding_on_its_value(tmp_path: Path) -> None:
    found = project(tmp_path, "alerts.webhook: $NOPE\nstate: {lease: $NOPE}\npipelines: {path: $NOPE}\n")
    assert [finding.code for finding in found.findings] == ["config.env_unset"] * 3


def test_a_defect_in_a_check_is_a_finding_and_the_settings_keep_their_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conduit_dagster.config.project._flattened", lambda tree: 1 / 0)
    found = project(tmp_path, "log: {level: debug}\n")
    assert places(found) == [("config.check_failed", "conduit.yaml", 1, 1, "")]
    assert found.settings.log.level == "info"


def test_findings(tmp_path: Path) -> None:
    text = "log: {level: debugg}\nfoo: 1\nspark:\n  paralellism: 2\n  parallelism: 0\nstate.lease: 5\ndb.type: x\n"
    found = project(tmp_path, text)
    assert places(found) == [
        ("config.field_invalid", "conduit.yaml", 1, 14, "/log/level"),
        ("config.field_unknown", "conduit.yaml", 2, 1, "/foo"),
        ("config.field_unknown", "conduit.yaml", 4, 3, "/spark/paralellism"),
        ("config.field_invalid", "conduit.yaml", 5, 16, "/spark/parallelism"),
        ("config.field_invalid", "conduit.yaml", 6, 14, "/state/lease"),
        ("config.field_ignored", "conduit.yaml", 7, 1, "/db.type"),
    ]
    assert (found.settings.log.level, found.settings.state.lease) == ("info", 10.0)


def test_a_bad_variable_is_named_and_left_out(tmp_path: Path) -> None:
    found = project(tmp_path, "state.lease: 3s\n", CONDUIT_STATE_LEASE="7")
    assert places(found) == [("config.field_invalid", "$CONDUIT_STATE_LEASE", 1, 1, "/state/lease")]
    assert found.settings.state.lease == 3.0


def test_delays(tmp_path: Path) -> None:
    found = project(tmp_path, "recovery.min-delay: 2h\n")
    expected = ("config.field_invalid", "conduit.yaml", 1, 21, "/pipelines/error-recovery/min-delay")
    assert places(found) == [expected]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: [1\n", "config.parse_error"),
        ("- x\n", "config.parse_error"),
        ("a: 1\na: 2\n", "config.key_duplicate"),
    ],
)
def test_a_file_that_is_no_yaml_still_gives_a_project(tmp_path: Path, text: str, code: str) -> None:
    found = project(tmp_path, text)
    assert code in [finding.code for finding in found.findings]
    assert found.settings.pipelines.path == "./pipelines"


def test_two_documents(tmp_path: Path) -> None:
    assert places(project(tmp_path, "log.level: info\n---\nlog.level: warn\n")) == [
        ("config.parse_error", "conduit.yaml", 3, 1, "")
    ]


@pytest.mark.parametrize("path", ["/abs/x", "s3://bucket/x", "file:///x", "sc://host:1"])
def test_absolute_paths_and_urls_stay(tmp_path: Path, path: str) -> None:
    assert project(tmp_path).resolve(path) == path


def test_staging_and_log_that_can_not_be_opened_are_found(tmp_path: Path) -> None:
    found = project(tmp_path, "state: {staging: nope://bucket/x, log: s://y}\n", CONDUIT_STATE_LOG="none://z")
    assert places(found) == [
        ("config.field_invalid", "$CONDUIT_STATE_LOG", 1, 1, "/state/log"),
        ("config.field_invalid", "conduit.yaml", 1, 18, "/state/staging"),
    ]
    assert "nope:// can't be opened here: Protocol not known: nope" in found.findings[1].message


def test_staging_and_log_inside_one_process_are_found(tmp_path: Path) -> None:
    found = project(tmp_path, "state: {staging: memory://x, log: 'simplecache::memory://y'}\n")
    assert [finding.path for finding in found.findings] == ["/state/staging", "/state/log"]
    assert all("is inside one process" in finding.message for finding in found.findings)


def test_relative_paths_start_at_the_root(tmp_path: Path) -> None:
    found = project(tmp_path, "state: {url: 'sqlite:///s.db', staging: stage}\n")
    assert found.resolve("./in.jsonl") == str(tmp_path / "in.jsonl")
    assert (found.state_url, found.staging_url) == (f"sqlite:///{tmp_path}/s.db", str(tmp_path / "stage"))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite+pysqlite:///:memory:"])
def test_a_state_store_in_memory_is_refused(tmp_path: Path, url: str) -> None:
    """Each connection would open another one."""
    [finding] = project(tmp_path, f"state.url: '{url}'\n").findings
    assert (finding.path, finding.fix) == ("/state/url", "write sqlite:///PATH, or leave it out")


def test_settings_that_are_no_mapping_are_not_taken_for_a_pipeline_file(tmp_path: Path) -> None:
    [finding] = project(tmp_path, "[a]\n").findings
    assert (finding.code, finding.message) == ("config.parse_error", "the document is not a mapping")
    assert (finding.fix or "").startswith("write keys with values")


@pytest.mark.parametrize("url", ["mysql://u:s3cret@h/d", "state.db", "postgresql+psycopg2://u:s3cret@h/d"])
def test_another_kind_of_state_store_is_refused(tmp_path: Path, url: str) -> None:
    for text, env in (f"state: {{url: '{url}'}}\n", {}), ("", {"CONDUIT_STATE_URL": url}):
        [finding] = project(tmp_path, text, **env).findings
        assert (finding.code, finding.path) == ("config.field_invalid", "/state/url")
        assert finding.message == "a state store is SQLite or PostgreSQL"
        assert "s3cret" not in finding.render()


@pytest.mark.parametrize("url", ["sqlite:///x.db", "sqlite+pysqlite:///x.db", "postgres://h/d", "postgresql://u@h/d"])
def test_every_kind_of_state_store(tmp_path: Path, url: str) -> None:
    assert project(tmp_path, f"state: {{url: '{url}'}}\n").findings == ()


@pytest.mark.parametrize(
    "url", ["locall", "local[2", "Local[2]", "yarn-client", "spark:h:7077", "spark://", "http://h:4040"]
)
def test_what_is_no_master_of_spark_is_refused(tmp_path: Path, url: str) -> None:
    for text in (f"spark: {{url: '{url}'}}\n", f"spark: '{url}'\n"):
        [finding] = project(tmp_path, text).findings
        assert (finding.code, finding.path) == ("config.field_invalid", "/spark/url")
        assert "local[*]" in str(finding.expected)


@pytest.mark.parametrize(
    "url",
    [
        *("shared", "yarn", "local", "local[2]", "local[*]", "local[*, 3]", "local-cluster[2,1,1024]"),
        *("spark://h:7077,i:7077", "k8s://https://h:1", "sc://h:15002/;token=x", "other://x"),
    ],
)
def test_every_kind_of_master(tmp_path: Path, url: str) -> None:
    found = project(tmp_path, f"spark: '{url}'\n")
    assert (found.findings, found.settings.spark.url) == ((), url)
