"""The one marker of the Python tests: long ones run under `make test-all` alone."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes minutes; `make test` leaves it out")
