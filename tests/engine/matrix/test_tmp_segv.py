import pytest
from engine.matrix.kill_cases import Case
from engine.matrix.kill_round import Round, World
@pytest.mark.timeout(500)
def test_x(tmp_path, spark, connect_server, postgres_server):
    bad=[]
    w=World(spark, connect_server, postgres_server.create_database, tmp_path)
    for i in range(24):
        r=Round(w.within(str(i)), [Case.parse(f"folder/merge/exactly-once/after-stage:1")]*8)
        try: r.kill()
        except AssertionError as e: bad.append(str(e)); print(i, str(e)[:6000], flush=True)
    print(len(bad), "bad of 24")
