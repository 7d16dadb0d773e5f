"""A typed, synchronous client of `/api/v1`, for Python programs and the command line."""

from orchestrator.client.client import Client as Client
from orchestrator.client.client import connect as connect
from orchestrator.client.errors import RequestRefused as RequestRefused
from orchestrator.client.errors import ServiceUnreachable as ServiceUnreachable
from orchestrator.client.locator import find_url as find_url
from orchestrator.client.locator import read_address as read_address
from orchestrator.client.watch import MAX_LOG_LINES as MAX_LOG_LINES
from orchestrator.client.watch import LogChoice as LogChoice
from orchestrator.client.watch import WaitTimeout as WaitTimeout
