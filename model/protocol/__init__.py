"""One pipeline whose file stays as it is: crashes, frozen owners, lost staging, changed verdicts, rejections.

state.py       what is stored, staged and published; configurations
rules.py       the rules that a configuration may do without
decisions.py   stage, resolve and decide: pure functions of records and verdicts
process.py     the phases of an owner, from its start to its status
preparing.py   plan, stage, resolve, prepare
publishing.py  the deliveries of a prepared step, each in a thread of its own
children.py    split deliveries: children, claims, rejections and their dead letters
shared.py      what these have in common
world.py       faults
check.py       the invariants
cases.py       the configurations
"""
