"""One pipeline that is edited between its runs: destinations come and go, sources, code and log mode change.

state.py     what is stored, published and logged; the edits and faults that a configuration allows
rules.py     the rules of the protocol, each of which can be switched off
log.py       the commit log: whole entries, compaction, gaps
register.py  what a run does before it reads: retire, register, catch-ups, promises
run.py       the phases of a run, from its start to its status
plan.py      which step comes next
stage.py     log, stage and prepare
publish.py   publish, dead letters of refused records, done
world.py     crashes, edits and losses
check.py     the invariants
cases.py     the configurations: the protocol as it was, with its rules, and with one rule missing
"""
