"""Run clients one after another, and write their results into docs/CLIENTS.md (`make clients`)."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from .client import Client, all_clients
from .environment import Environment, InstallError
from .installing import FOLDER
from .records import PAGE, Record, key_of, library_state, record_of, store, stored, write_table
from .suites import judge_suite, named_versions
from .verdict import Outcome, judge


def run_client(client: Client, folder: Path, *, again: bool, fresh: bool) -> Record:
    """Return the record of a client, which runs unless a record of the same state is there."""
    began = time.monotonic()
    environment = Environment(client, folder)
    if not client.suite:
        try:
            environment.install(anew=fresh)
        except InstallError as error:
            failed = [Outcome("installation", trouble=str(error))]
            return record_of(client, "", {}, failed, time.monotonic() - began)
    versions = named_versions(client) if client.suite else environment.versions()
    key = key_of(client, versions, library_state())
    kept = stored(folder / "records", client.name)
    if kept is not None and kept.key == key and not again:
        return kept
    output = folder / "output" / client.name
    if client.suite:
        outcomes = judge_suite(client, folder, output)
    else:
        outcomes = judge(client, environment, output)
    record = record_of(client, key, versions, outcomes, time.monotonic() - began)
    store(folder / "records", record)
    return record


def main(arguments: list[str] | None = None) -> int:
    """Run the clients that were asked for; return 1 if any of them did not run whole."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("--only", default="", help="names of clients, with commas; default: all")
    parser.add_argument("--again", action="store_true", help="run what has run in this state, too")
    parser.add_argument("--fresh", action="store_true", help="install the newest packages first")
    parser.add_argument("--list", action="store_true", help="name all clients, and run none")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for environments and records")
    parser.add_argument("--page", type=Path, default=PAGE, help="file with the table")
    options = parser.parse_args(arguments)
    clients = all_clients()
    names = [client.name for client in clients]
    if options.list:
        print(*(f"{client.name}: {client.ran}" for client in clients), sep="\n")
        return 0
    only = [name for name in options.only.split(",") if name]
    if unknown := sorted(set(only) - set(names)):
        parser.error(f"no client is called {', '.join(unknown)}; --list names them all")
    records = []
    for client in clients:
        if only and client.name not in only:
            continue
        record = run_client(client, options.folder, again=options.again, fresh=options.fresh)
        write_table([record], names, options.page)
        print(f"{record.client} {record.version} ({record.seconds} s): {record.result}", flush=True)
        records.append(record)
    return 0 if all(record.is_whole for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
