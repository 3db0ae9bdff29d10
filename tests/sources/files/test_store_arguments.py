# SPDX-License-Identifier: Apache-2.0
"""The types of the arguments of a store."""

from __future__ import annotations

import pytest

from forebay.stores.store import typed_argument


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("key", "0012345", "0012345"),
        ("key", "12345", "12345"),
        ("secret", "1e5", "1e5"),
        ("secret", "true", "true"),
        ("password", "42", "42"),
        ("account_name", "7", "7"),
        ("project", "123456", "123456"),
        ("max_token", "5", "5"),
        ("token", '{"type": "service_account"}', {"type": "service_account"}),
        ("anon", "true", True),
        ("use_ssl", "False", False),
        ("port", "9000", 9000),
        ("port", "09000", "09000"),
        ("default_block_size", "5242880", 5_242_880),
        ("connect_timeout", "2.5", 2.5),
        ("client_kwargs", '{"region_name": "x", "n": 1}', {"region_name": "x", "n": 1}),
        ("config", "{no json", "{no json"),
        ("endpoint_url", "http://h:1", "http://h:1"),
    ],
)
def test_a_credential_of_digits_stays_a_text(name: str, text: str, value: object) -> None:
    found = typed_argument(name, text)
    assert found == value
    assert type(found) is type(value)
