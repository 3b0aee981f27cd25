"""Recipes as TOML, shipped or of users: read, overridden, checked, and written with every key explained."""

import difflib
import json
import tomllib
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from umpteen.config.settings import KINDS, UNSET, RunConfig, Section, merged
from umpteen.errors import BadConfig, BadFile, BadInput

_THERE_ARE = "`umpteen recipe list` names those that ship with umpteen"
FOLDER = Path(__file__).with_name("shipped")
_OF_DATA = (".csv", ".tsv", ".jsonl", ".parquet", ".gz")  # how files of data end
GROUPS = ("the paper's", "static", "mixed", "transformer", "classifier", "hard negatives")


def _read_settings(path: Path, *extending: Path) -> dict[str, Any]:
    """The settings of a file on top of those of the recipe that it extends, beside it or shipped, if it names one."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadFile(path, f"there is no such recipe; {_THERE_ARE}") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise BadFile(path, f"not a TOML file: {problem}") from None
    extended = settings.pop("extends", None)
    if extended is None:
        return settings
    beside = path.parent / f"{extended}.toml"
    under = beside if beside.exists() and beside != path else FOLDER / f"{extended}.toml"
    if under in (path, *extending):
        raise BadFile(path, f'extends = "{extended}" leads back to itself')
    if not under.exists():
        raise BadFile(path, f'extends = "{extended}": there is no such recipe beside it; {_THERE_ARE}')
    return merged(_read_settings(under, path, *extending), settings)


def with_overrides(settings: dict[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    """`optimizer.learning_rate=0.01` and the like, over a recipe's settings; values are TOML, or else strings."""
    over: dict[str, Any] = {}
    for override in overrides:
        dotted, equals, written = override.partition("=")
        if not equals:
            raise BadConfig(f"--set {override}: write it as key=value, for instance --set optimizer.learning_rate=0.01")
        section = over
        *parents, key = dotted.strip().split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise BadConfig(f"--set {override}: {parent} is a value, not a section")
        if not written.strip():
            raise BadConfig(f"--set {override}: there is no value; `{dotted.strip()}=none` takes a setting back")
        try:
            section[key] = tomllib.loads(f"value = {written.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            section[key] = None if written.strip().lower() in {"none", "null"} else written.strip()
    return merged(settings, over)


def checked(settings: dict[str, Any], *, origin: str) -> RunConfig:
    """The settings as a configuration, or an error that names the key, the value and the nearest known key."""
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as invalid:
        raise BadConfig(f"{origin}: " + "; ".join(_explain(dict(problem)) for problem in invalid.errors())) from None


def _explain(problem: dict[str, Any]) -> str:
    location = [str(part) for part in problem["loc"] if part not in {"constrained-int", "literal['positives']"}]
    key = ".".join(location)
    if problem["type"] != "extra_forbidden":
        given = f"[{key}]" if isinstance(problem["input"], dict) else f"{key} = {problem['input']!r}"
        return f"{given}: {problem['msg'].removeprefix('Value error, ')}"
    known = _known_at(location[:-1])
    nearest = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
    where = f"[{'.'.join(location[:-1])}]" if location[:-1] else "the top level"
    hint = f"did you mean {nearest[0]}?" if nearest else f"{where} knows {', '.join(known)}"
    return f"unknown key {key}; {hint}"


def _known_at(path: list[str]) -> list[str]:
    """The keys of a section; of one that has kinds, those of all of them."""
    sections: list[type[Section]] = [RunConfig]
    for depth, part in enumerate(path, 1):
        _, kinds = KINDS.get(".".join(path[:depth]), ("", {}))
        fields = [section.model_fields[part] for section in sections if part in section.model_fields]
        sections = list(kinds.values()) or [section for field in fields for section in _sections_in(field)]
    return list(dict.fromkeys(name for section in sections for name in section.model_fields))


def _sections_in(field: FieldInfo) -> list[type[Section]]:
    kinds = get_args(field.annotation) or (field.annotation,)
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]


def to_toml(config: RunConfig) -> str:
    """The whole configuration as TOML, each key with its explanation."""
    query, label = config.encoder.query, config.encoder.label_tower
    under = query.parts.get(label.kind, query)  # whose settings labels have unless theirs say otherwise
    unset = [name for name in type(label).model_fields if getattr(label, name) is None]
    left_out = {f"encoder.label.{name}" for name in unset if getattr(under, name, None) is not None}
    return "\n".join(_section_lines(config, [], left_out)).strip() + "\n"


def _section_lines(section: Section, path: list[str], left_out: set[str]) -> list[str]:
    lines: list[str] = [f"\n[{'.'.join(path)}]"] if path else []
    nested: list[str] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            nested += _section_lines(value, [*path, name], left_out)
            continue
        if ".".join([*path, name]) in left_out:
            lines.append(f'{name} = "{UNSET}"  # which queries have')
            continue
        explanation = f"  # {field.description}" if field.description else ""
        if value is None:
            lines += [f"# {name} ={explanation}"] if name != "label" and not _sections_in(field) else []
        else:
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}{explanation}")
    return lines + nested


def flat(settings: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Every setting by its dotted name."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return found


def names() -> list[str]:
    """The shipped recipes by name."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def grouped() -> dict[str, dict[str, str]]:
    """The shipped recipes by what they are, each with the first line of its file."""
    found: dict[str, dict[str, str]] = {group: {} for group in GROUPS}
    for name in names():
        about = path_of(name).read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        config = resolve(name)
        query, label = config.encoder.query, config.encoder.label_tower
        group = "mixed" if query.parts else query.kind
        if config.pool.name != "all":
            group = "hard negatives"
        elif "table" in (label.kind, *label.parts):
            group = "classifier"
        elif about.startswith("The paper's"):
            group = "the paper's"
        found[group][name] = about
    return found


def path_of(recipe: str) -> Path:
    """The file of a recipe given by name or by path."""
    if recipe in names():  # data may have the same name
        return FOLDER / f"{recipe}.toml"
    written = Path(recipe)
    if written.exists() and written.suffix != ".toml" and (written.is_dir() or written.suffix in _OF_DATA):
        raise BadInput(f"{recipe} is data, not a recipe; `umpteen fit {recipe}` finds the best model for it")
    if written.suffix == ".toml" or written.exists():
        return written
    nearest = difflib.get_close_matches(recipe, names(), n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else _THERE_ARE
    raise BadInput(f"there is no recipe {recipe}; {hint}")


def resolve(recipe: str, overrides: tuple[str, ...] = (), source: str | None = None) -> RunConfig:
    """A recipe by name or path, with `key=value` overrides and a dataset applied, as a checked configuration."""
    if source is not None:
        overrides = (*overrides, f"data.source={json.dumps(source)}")  # as TOML, so that a folder may be called 2024
    path = path_of(recipe)
    return checked(with_overrides(_read_settings(path), overrides), origin=str(path))
