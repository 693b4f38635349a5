"""On which side of its bounds a claim lies on made-up runs, however few they are."""

from theodolite_papers.ledger import judge_claim


def side(claim, size, runs):
    verdict = judge_claim(claim, size, runs)
    if verdict.status in ("reported", "not run"):
        return verdict.status
    found = {one.holds for one in verdict.outcomes.values()}
    if found in ({True}, {False}):
        return "holds" if found == {True} else "fails"
    return "mixed" if {True, False} <= found else "undecided"
