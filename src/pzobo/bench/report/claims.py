"""Does a sentence of the paper hold here? Checks of a summary of the runs: a verdict and its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pzobo.bench.report.summary import Summary

Check = Callable[["Summary"], tuple[str, str] | None]
Where = Mapping[str, Any]

FORMS = ("pzobo-authors", "pzobo", "pzobo-paper", "pzobo-s-authors", "pzobo-s", "pzobo-s-paper")
CONTROLS = ("direct", "exact")
CLOSE = 1.1
"""Values, or times, that differ by less than this factor are called alike."""


def _cases(where: Where) -> list[dict[str, Any]]:
    """One for each combination of the values that are given as tuples."""
    keys = list(where)
    lists = [value if isinstance(value, tuple) else (value,) for value in where.values()]
    return [dict(zip(keys, values, strict=True)) for values in product(*lists)]


def _words(case: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} = {v}" if not isinstance(v, str) else v for k, v in case.items())


def _verdict(found: Sequence[bool]) -> str:
    return "yes" if all(found) else "in part" if any(found) else "no"


def _name(method: str) -> str:
    return {"direct": "Direct"}.get(method, method)


def _list(values: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{_name(method)} {value:.3g}" for method, value in values)


def _present(s: Summary, case: Where, methods: Iterable[str]) -> list[str]:
    return [m for m in methods if s.final(m, **case) is not None]


def _over(check: Callable[[Summary, dict[str, Any]], tuple[bool | str, str] | None], where: Where) -> Check:
    """The check of each case that was run, put together."""

    def whole(s: Summary) -> tuple[str, str] | None:
        cases = [(case, check(s, case)) for case in _cases(where)]
        answers = [(case, answer) for case, answer in cases if answer is not None]
        if not answers:
            return None
        text = "; ".join((f"{_words(case)}: " if len(answers) > 1 else "") + answer[1] for case, answer in answers)
        words = {answer[0] for _, answer in answers}
        if words <= {True, False}:
            return _verdict([answer[0] is True for _, answer in answers]), text
        return (str(words.pop()) if len(words) == 1 else "in part"), text

    return whole


def beats_all(where: Where, threshold: float) -> Check:
    """PZOBO as the authors wrote it reaches a threshold before all baselines do, and before Direct."""

    def check(s: Summary, case: dict[str, Any]) -> tuple[bool | str, str] | None:
        form = "pzobo-authors"
        if s.final(form, **case) is None:
            return None
        times = {m: s.time_to(m, threshold, **case) for m in s.where(**case).methods()}
        mine = times.pop(form, None)
        others = {m: t for m, t in times.items() if t is not None and m not in (*FORMS, *CONTROLS)}
        direct = times.get("direct")
        reached = _list([(m, t) for m, t in sorted(others.items(), key=lambda pair: pair[1])[:3]]) or "none"
        text = f"seconds to {threshold:g}: {form} {'never' if mine is None else f'{mine:.3g}'}; baselines: {reached}"
        text += f"; Direct, without any Jacobian, {'never' if direct is None else f'{direct:.3g}'}"
        shown = _present(s, case, (form, "direct", "exact", "itd-r", "pzobo-paper"))
        text += f". Final: {_list((m, s.final(m, **case) or 0.0) for m in shown)}"
        if mine is None or any(t * CLOSE < mine for t in others.values()):
            return False, text
        if direct is not None and direct < mine * CLOSE:
            return (
                "in part",
                text + ". Faster than the baselines, but no faster than Direct: its Jacobian is not the reason",
            )
        return True, text

    return _over(check, where)


def hozog_worse(where: Where) -> Check:
    """HOZOG ends worse than PZOBO (authors' code); the paper's own text is shown beside it."""

    def check(s: Summary, case: dict[str, Any]) -> tuple[bool | str, str] | None:
        values = {m: s.final(m, **case) for m in ("pzobo-authors", "pzobo", "pzobo-paper", "hozog", "direct")}
        found = [(m, v) for m, v in values.items() if v is not None]
        hozog, authors, paper = values["hozog"], values["pzobo-authors"], values["pzobo-paper"]
        if hozog is None or authors is None:
            return None
        if paper is not None and authors < hozog and paper > hozog:
            return "in part", f"final: {_list(found)} (not for the paper's text, pzobo-paper)"
        return authors < hozog, f"final: {_list(found)}"

    return _over(check, where)


def _last_and_first(s: Summary, method: str, case: Where, metric: str) -> tuple[float, float] | None:
    runs = s.where(method=method, **case).runs
    pairs = [[value for _, value in run.column("step", metric) if math.isfinite(value)] for run in runs]
    pairs = [values for values in pairs if len(values) > 1]
    if not pairs:
        return None
    middle = sorted(pairs, key=lambda values: float(values[-1]))[len(pairs) // 2]
    return float(middle[0]), float(middle[-1])


def hozog_stuck(where: Where) -> Check:
    """HOZOG ends above a hundredth of where it began."""

    def check(s: Summary, case: dict[str, Any]) -> tuple[bool | str, str] | None:
        ends = _last_and_first(s, "hozog", case, "outer_loss")
        if ends is None:
            return None
        others = _list((m, s.final(m, **case) or 0.0) for m in _present(s, case, ("pzobo-authors", "direct", "exact")))
        return ends[1] > 0.01 * ends[0], f"HOZOG from {ends[0]:.3g} to {ends[1]:.3g}; final of others: {others}"

    return _over(check, where)


def hozog_flat(where: Where) -> Check:
    """HOZOG's norm stays within a factor of ten, PZOBO's falls by more; in part if HOZOG's rises."""

    def check(s: Summary, case: dict[str, Any]) -> tuple[bool | str, str] | None:
        norms = {m: _last_and_first(s, m, case, "hypergradient_norm") for m in ("hozog", "pzobo-authors", "direct")}
        hozog, mine = norms["hozog"], norms["pzobo-authors"]
        if hozog is None or mine is None:
            return None
        text = "; ".join(f"{_name(m)} from {e[0]:.3g} to {e[1]:.3g}" for m, e in norms.items() if e is not None)
        stays = hozog[1] > 0.1 * hozog[0] and mine[1] < 0.1 * mine[0]
        if stays and hozog[1] > 10 * hozog[0]:
            return "in part", f"norm: {text}. It does not fall, but it is not flat: it rises"
        return stays, f"norm: {text}"

    return _over(check, where)


def insensitive(where: Where, method: str = "pzobo-authors") -> Check:
    """The final value changes by less than a factor of two over N (accuracies: by less than 0.01)."""

    def check(s: Summary, case: dict[str, Any]) -> tuple[bool | str, str] | None:
        values = [(n, s.final(method, N=n, **case)) for n in s.where(**case).values("N")]
        ended = [(n, v) for n, v in values if v is not None]
        if len(ended) < 2:
            return None
        low, high = min(v for _, v in ended), max(v for _, v in ended)
        alike = high - low < 0.01 if s.about.higher else high < 2 * low
        controls = [(n, s.final("direct", N=n, **case)) for n, _ in ended]
        text = f"final of {method}: " + ", ".join(f"N = {n}: {v:.3g}" for n, v in ended)
        shown = ", ".join(f"{v:.3g}" for _, v in controls if v is not None)
        return alike, text + (f" (Direct: {shown})" if shown else "")

    return _over(check, where)


def fastest_to(value: float, where: Where, form: str = "pzobo-s-authors") -> Check:
    """A form of PZOBO-S reaches an accuracy before the baselines of the paper do."""

    def check(s: Summary, case: dict[str, Any]) -> tuple[bool | str, str] | None:
        if s.final(form, **case) is None:
            return None
        times = {m: s.time_to(m, value, **case) for m in s.where(**case).methods()}
        reached = sorted(((m, t) for m, t in times.items() if t is not None), key=lambda pair: pair[1])
        never = [m for m, t in times.items() if t is None]
        text = f"seconds to {value:g}: {_list(reached)}" + (f"; never: {', '.join(never)}" if never else "")
        mine = times[form]
        if mine is None:
            return False, text
        baselines = [t for m, t in reached if m in ("aid-cg-s", "aid-fp-s", "stocbio")]
        if any(t * CLOSE < mine for t in baselines):
            return False, text
        direct = times.get("direct")
        return ("in part" if direct is not None and direct < mine else True), text

    return _over(check, where)


def only_one_to(value: float, where: Where) -> Check:
    """PZOBO-S reaches an accuracy and no other method does."""

    def check(s: Summary, case: dict[str, Any]) -> tuple[bool | str, str] | None:
        best = [(m, v) for m in s.where(**case).methods() if (v := s.final(m, **case)) is not None]
        if not best:
            return None
        reach = [m for m, _ in best if s.time_to(m, value, **case) is not None]
        mine = [m for m in reach if m in FORMS]
        others = [m for m in reach if m not in FORMS]
        text = f"final: {_list(sorted(best, key=lambda pair: -pair[1]))}; reach {value:g}: {', '.join(reach) or 'none'}"
        return (True if mine and not others else "in part" if mine else False), text

    return _over(check, where)


def saturates(value: float, where: Where) -> Check:
    """The baselines of the paper end below an accuracy."""

    def check(s: Summary, case: dict[str, Any]) -> tuple[bool | str, str] | None:
        ends = [(m, v) for m in ("aid-cg-s", "aid-fp-s", "stocbio") if (v := s.final(m, **case)) is not None]
        return (all(v < value for _, v in ends), f"final: {_list(ends)}") if ends else None

    return _over(check, where)


def beats(method: str, other: str, where: Where) -> Check:
    """One method ends better than another, in each of PZOBO's forms."""

    def check(s: Summary, case: dict[str, Any]) -> tuple[bool | str, str] | None:
        theirs = s.final(other, **case)
        forms = [(m, v) for m in FORMS if m.startswith(method) and (v := s.final(m, **case)) is not None]
        if theirs is None or not forms:
            return None
        controls = [(m, v) for m in CONTROLS if (v := s.final(m, **case)) is not None]
        won = [v > theirs if s.about.higher else v < theirs for _, v in forms]
        return _verdict(won), f"final: {_list([*forms, (other, theirs), *controls])}"

    return _over(check, where)


def converges_faster(others: tuple[str, ...], where: Where, forms: tuple[str, ...] = FORMS) -> Check:
    """The best form of PZOBO is below the others half-way through and at the end of the same time."""

    def check(s: Summary, case: dict[str, Any]) -> tuple[bool | str, str] | None:
        mine = _present(s, case, forms)
        rest = _present(s, case, others)
        if not mine or not rest:
            return None
        columns = [run.column("seconds", s.about.final) for run in s.where(method=(*mine, *rest), **case).runs]
        lasts = [column[-1][0] for column in columns if column]
        shown = (*mine, *rest, *_present(s, case, CONTROLS))
        best = max if s.about.higher else min
        points = []
        for seconds in (min(lasts) / 2, min(lasts)) if lasts else ():
            values = {m: v for m in shown if (v := s.at(m, seconds, **case)) is not None}
            if not (values.keys() & set(mine) and values.keys() & set(rest)):
                continue
            top = best(values[m] for m in mine if m in values)
            theirs = best(values[m] for m in rest if m in values)
            won = top > theirs if s.about.higher else top < theirs
            points.append((won, f"after {seconds:.0f} s: {_list(values.items())}"))
        if not points:
            return None
        return _verdict([won for won, _ in points]), "; ".join(text for _, text in points)

    return _over(check, where)


def finds_corrupted() -> Check:
    """The weights of a method tell wrong labels from right ones with an AUC above 0.9."""

    def check(s: Summary) -> tuple[str, str] | None:
        found = [(m, v) for m in s.methods() if (v := s.final(m, "auc")) is not None]
        if not found:
            return None
        good = [m for m, v in found if v > 0.9]
        return _verdict([m in good for m, _ in found if m != "direct"]), f"AUC: {_list(found)}"

    return check
