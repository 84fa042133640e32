"""`crossflow completion`: scripts with which shells complete commands, options and names.

The words are those of the parser and of the catalogues at the time when the script is written; it starts no program when a key is pressed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from crossflow.answers import settings
from crossflow.answers.sections import presets
from crossflow.base import files
from crossflow.edges.cli import page, parser
from crossflow.workload.kinds import MODELS

# What arguments take, by the name of the argument or of the option: names of the catalogues beside files.
_TAKES = {
    "name": ("techlibs", "templates", "models", "studies"), "study": ("studies",), "sources": ("studies",),
    "--system": ("systems",), "--on": ("systems",),
    "--device": ("systems",), "--model": ("models",),
}  # fmt: skip


DEEP = 3  # parts of a path of a setting after the first, of those that are completed
FITTED = (".execution", ".network.parameters")  # numbers that were fitted, which few people set


class Words(NamedTuple):
    """What a command may be followed by: its help, its options with the words after each, and the words of its arguments."""

    about: str
    options: Mapping[str, Sequence[str]]
    arguments: Sequence[str]


def run(arguments: argparse.Namespace) -> None:
    """Write the script of a shell."""
    known = dict(_commands())
    script = {"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell](known)
    if arguments.json:
        page.emit_json({"shell": arguments.shell, "script": script})
    else:
        sys.stdout.write(script)


def _commands() -> Iterator[tuple[str, Words]]:
    """Words of every command."""
    subparsers = next(action for action in parser.build()._actions if isinstance(action, argparse._SubParsersAction))
    abouts = {choice.dest: choice.help or "" for choice in subparsers._choices_actions}
    for name, command in subparsers.choices.items():
        options: dict[str, Sequence[str]] = {}
        positional: list[str] = []
        for action in command._actions:
            words = [*map(str, action.choices or ()), *_names(action)]
            options |= dict.fromkeys(action.option_strings, words)
            positional += [] if action.option_strings else words
        yield name, Words(abouts.get(name, ""), options, list(dict.fromkeys(positional)))


def _names(action: argparse.Action) -> list[str]:
    """Names of the catalogues that an argument takes."""
    keys = action.option_strings or [action.dest]
    if "--set" in keys:
        return [f"{path}=" for path in settings.paths() if path.count(".") <= DEEP and not any(part in path for part in FITTED)]
    kinds = dict.fromkeys(kind for key in keys for kind in _TAKES.get(key, ()))
    return sorted(name for kind in kinds for name in _catalogue(kind))


def _catalogue(kind: str) -> Iterator[str]:
    if kind == "models":
        yield from (*MODELS, *presets())
    elif kind == "systems":
        yield from (name for name, path in files.catalogue("templates").items() if path.parent.name in ("systems", "devices", "generated"))
    else:
        yield from files.catalogue(kind)


def _listed(words: Sequence[str]) -> str:
    return " ".join(words)


def bash(known: Mapping[str, Words]) -> str:
    """Script of bash: ``eval "$(crossflow completion bash)"``, or a file in ~/.local/share/bash-completion/completions."""
    cases = ""
    for name, words in known.items():
        after = "".join(f'        {option}) words="{_listed(values)}" ;;\n' for option, values in words.options.items() if values)
        inner = f'      case "$last" in\n{after}      esac\n' if after else ""
        cases += f'    {name})\n      words="{_listed(words.arguments)}"\n{inner}      options="{_listed(list(words.options))}" ;;\n'
    return f"""# Completion of crossflow for bash. Use it with: eval "$(crossflow completion bash)"
_crossflow() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" last="${{COMP_WORDS[COMP_CWORD-1]}}" words="" options=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{_listed(list(known))} --help --version" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}  esac
  if [[ "$word" == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word"))
  fi
  if [[ "${{COMPREPLY[0]}}" == *= ]]; then compopt -o nospace 2>/dev/null; fi
}}
complete -o filenames -F _crossflow crossflow
"""


def zsh(known: Mapping[str, Words]) -> str:
    """Script of zsh: ``crossflow completion zsh > ~/.zfunc/_crossflow``, with that folder in ``fpath``; or eval it after compinit."""
    commands = "\n".join(f"    {_quoted(f'{name}:{words.about}')}" for name, words in known.items())
    cases = ""
    for name, words in known.items():
        after = "".join(f"        {option}) names=({_listed(values)}) ;;\n" for option, values in words.options.items() if values)
        inner = f'      case "$last" in\n{after}      esac\n' if after else ""
        cases += f"    {name})\n      names=({_listed(words.arguments)})\n{inner}      options=({_listed(list(words.options))}) ;;\n"
    return f"""#compdef crossflow
# Completion of crossflow for zsh. Use it with: eval "$(crossflow completion zsh)" after compinit
_crossflow() {{
  local last="${{words[CURRENT-1]}}" command="${{words[2]}}" current="${{words[CURRENT]}}"
  local -a commands options names
  commands=(
{commands}
  )
  if (( CURRENT == 2 )); then
    _describe 'command' commands
    return
  fi
  case "$command" in
{cases}  esac
  if [[ "$current" == -* ]]; then
    compadd -- $options
  else
    compadd -S '' -- ${{(M)names:#*=}}
    compadd -- ${{names:#*=}}
    _files
  fi
}}
if [ "$funcstack[1]" = "_crossflow" ]; then _crossflow "$@"; else compdef _crossflow crossflow; fi
"""


def fish(known: Mapping[str, Words]) -> str:
    """Script of fish: ``crossflow completion fish > ~/.config/fish/completions/crossflow.fish``."""
    lines = ["# Completion of crossflow for fish. Put it into ~/.config/fish/completions/crossflow.fish"]
    for name, words in known.items():
        lines.append(f"complete -c crossflow -n __fish_use_subcommand -f -a {name} -d {_quoted(words.about)}")
        here = f"complete -c crossflow -n '__fish_seen_subcommand_from {name}'"
        if words.arguments:
            lines.append(f"{here} -a {_quoted(_listed(words.arguments))}")
        for option, values in words.options.items():
            flag = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            lines.append(f"{here} {flag}" + (f" -x -a {_quoted(_listed(values))}" if values else ""))
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A word of a shell script."""
    return "'" + text.replace("'", "'\\''") + "'"
