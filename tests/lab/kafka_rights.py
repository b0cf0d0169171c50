"""A broker with ACLs: the commands that grant rights, and their removal."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from typing import Any

from confluent_kafka import admin

from .kafka_server import KafkaServer

AUTHORIZER = """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
"""Broker properties: users have the rights that they were granted, and the tests, which don't log in, all."""
_KINDS = {
    "--topic": admin.ResourceType.TOPIC,
    "--transactional-id": admin.ResourceType.TRANSACTIONAL_ID,
    "--group": admin.ResourceType.GROUP,
}


def grant(server: KafkaServer, command: str) -> None:
    """Do what a command ``kafka-acls.sh`` says."""
    for future in server.admin.create_acls(_bindings(command)).values():
        future.result(90)


def revoke_all(server: KafkaServer) -> None:
    """Remove all rights."""
    whatever = admin.AclBindingFilter(
        admin.ResourceType.ANY, None, admin.ResourcePatternType.ANY, None, None, admin.AclOperation.ANY,
        admin.AclPermissionType.ANY,
    )  # fmt: skip
    for future in server.admin.delete_acls([whatever]).values():
        future.result(90)


def _bindings(command: str) -> list[Any]:
    words = shlex.split(command)[1:]
    given = dict(pairwise(words))
    [(option, kind)] = [(option, kind) for option, kind in _KINDS.items() if option in given]
    is_prefix = given.get("--resource-pattern-type") == "prefixed"
    pattern = admin.ResourcePatternType.PREFIXED if is_prefix else admin.ResourcePatternType.LITERAL
    names = [word for before, word in pairwise(words) if before == "--operation"]
    return [
        admin.AclBinding(
            kind, given[option], pattern, given["--allow-principal"], "*",
            admin.AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()], admin.AclPermissionType.ALLOW,
        )
        for name in names
    ]  # fmt: skip
