"""Forget, seen from every side: other openings, other processes, and what would come back."""

import subprocess
import sys

from memoranda.ledger.errors import Refusal

REF = "personal-message:s-main-1:"
CANARY = "I moved to Kyoto."


WATCH = """
import sys
from memoranda import open_memory
with open_memory("us_alice", data=sys.argv[1], state=sys.argv[2]) as memory:
    for words in sys.stdin:
        shown = [fact for zone in memory.recall(words).zones for fact in zone.facts]
        print(len(shown), len(memory.search(words)), flush=True)
"""


def test_scenario_52_a_process_that_had_the_ledger_open_lacks_the_fact_at_once(
    memory, primary, folder
):
    made = primary.publish("home", CANARY, sources=[f"{REF}50#8-25"])
    command = [sys.executable, "-c", WATCH, str(folder["data"]), str(folder["state"])]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:

        def told() -> str:
            process.stdin.write("kyoto\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert told() == "1 1"
        assert memory.forget(made.record_id, 1).status == "forgotten"
        assert told() == "0 0"
        process.stdin.close()
    assert process.returncode == 0


def test_a_blocked_source_carries_no_fact_again_and_the_rest_of_its_message_does(memory, primary):
    made = primary.publish("home", CANARY, sources=[f"{REF}50#8-25"])
    assert len(memory.remnants(CANARY).remnants) == 2

    memory.forget(made.record_id, 1)

    again = [
        primary.publish("home", CANARY, sources=[f"{REF}50#8-25"]),
        primary.publish("town", CANARY, sources=[f"{REF}50"]),
        primary.propose("city", CANARY, sources=[f"{REF}50#20-25"]),
    ]
    assert [it.refusal.number for it in again] == ["F15"] * 3
    assert primary.publish("diet", "peanuts", sources=[f"{REF}50#0-7"]).to_revision == 1


def test_evidence_and_operation_of_another_opening_tell_nothing_of_a_forgotten_candidate(
    opened, memory, primary
):
    made = primary.propose("home", CANARY, sources=[f"{REF}50#8-25"], operation_id="op-c")
    other = opened()
    assert other.evidence(made.record_id).candidate.content == CANARY

    memory.forget(made.record_id, 1)

    assert other.evidence(made.record_id).refusal is Refusal.NOT_FOUND
    assert other.operation("op-c").intent is None
    assert other.candidates() == ()
    shown = other.query(include_inactive=True).records
    assert [it.record.status for it in shown] == ["forgotten"]
    assert CANARY not in str(shown)
