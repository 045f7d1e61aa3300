"""Whose client it is that a producer, a consumer or an admin works with."""

import pytest

from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig
from ogive.client.instance import ClientOwner
from ogive.errors import InvalidOption


def test_a_client_that_is_configured_twice_is_refused() -> None:
    """Else the address beside client= would count for nothing, and the messages would go
    elsewhere.
    """
    with pytest.raises(InvalidOption, match=r"'10\.0\.0\.1:9876' is given beside client="):
        ClientOwner("producer", "10.0.0.1:9876", ClientConfig())
    # as an untyped program may
    options = {"credentials": None}
    with pytest.raises(TypeError, match=r"client must be an ogive\.ClientConfig, not dict"):
        ClientOwner("producer", DEFAULT_NAME_SERVER, options)  # type: ignore[arg-type]
