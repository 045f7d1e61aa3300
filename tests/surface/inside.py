"""What the lists need from within ogive: the only imports that moved code changes."""

import argparse
from collections.abc import Collection
from pathlib import Path

from ogive.broker.config import CHANGEABLE
from ogive.cli import config_file
from ogive.cli.parser import build_parser
from ogive.client.config import read_credentials


def command_line() -> argparse.ArgumentParser:
    """Return the parser of ``ogive`` with all commands."""
    return build_parser()


def broker_conf_keys() -> Collection[str]:
    """Return the keys of Apache's broker.conf that ``ogive up --config`` reads."""
    return config_file._KNOWN


def changeable_settings() -> Collection[str]:
    """Return what UPDATE_BROKER_CONFIG, mqadmin's updateBrokerConfig, may change."""
    return CHANGEABLE


def credentials_in(file: Path) -> Collection[str | None]:
    """Return user, secret and token that a file of --credentials holds."""
    found = read_credentials(str(file))
    return found.access_key, found.secret_key, found.security_token
