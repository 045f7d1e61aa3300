"""``ogive completion``: scripts that complete commands in a shell, and the candidates for them.

A script runs ``ogive completion`` again at each Tab. So it matches the installed version, and all
shells share the code that looks through the parser.
"""

import argparse
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ogive.cli.options import Commands
from ogive.cli.parser import build_parser, normalize_arguments

_SCRIPTS: Final = {
    "bash": r"""_ogive() {
    local IFS=$'\n'
    COMPREPLY=($("$1" completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o bashdefault -o default -F _ogive ogive""",
    "zsh": r"""#compdef ogive
_ogive() {
    local -a found
    found=("${(@f)$("$words[1]" completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n $found[1] ]]; then _describe ogive found; else _files; fi
}
if [[ $funcstack[1] == _ogive ]]; then _ogive "$@"; else compdef _ogive ogive; fi""",
    "fish": r"""function __ogive_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] completion fish -- $words[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c ogive -f -a '(__ogive_complete)'""",
}
"""Scripts by shell. Without candidates they complete file names."""
_REPEATABLE: Final = (argparse._AppendAction, argparse._CountAction)
_DESCRIPTION_WIDTH: Final = 72


def complete(options: argparse.Namespace) -> int:
    """Print the script for a shell or, if there are words, the candidates for the last one."""
    if not options.words:
        print(_SCRIPTS[options.shell])
        return 0
    words = _whole_words(options.words) if options.shell == "bash" else options.words
    for word, text in candidates(words):
        if options.shell == "zsh":
            word = word.replace(":", r"\:")
        separator = {"bash": "", "zsh": ":", "fish": "\t"}[options.shell]
        print(f"{word}{separator}{text}" if separator and text else word)
    return 0


def candidates(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the candidates for the last of *words*, each with its description. There are none for
    values that the parser does not know, such as a topic or a file.
    """
    *before, current = words
    parser, option, given, places = _walk(normalize_arguments(before))
    name, equals, _ = current.partition("=")
    found: Iterable[tuple[str, str]]
    if option is not None:
        found = ((str(choice), "") for choice in option.choices or ())
    elif equals and name in parser._option_string_actions:
        choices = parser._option_string_actions[name].choices
        found = ((f"{name}={choice}", "") for choice in choices or ())
    elif current.startswith("-"):
        found = _options(parser, given)
    else:
        found = _arguments(parser, given, places)
    return [(word, text) for word, text in found if word.startswith(current)]


def _walk(
    words: Sequence[str],
) -> tuple[argparse.ArgumentParser, argparse.Action | None, list[argparse.Action], int]:
    """Return the parser of the command in *words*, the option that lacks its value, the options
    that have theirs, and the number of other words.
    """
    parser: argparse.ArgumentParser = build_parser(words)
    option, given, places = None, [], 0
    for word in words:
        known = parser._option_string_actions.get(word.partition("=")[0])
        commands = _commands(parser)
        if option is not None:
            option = None
        elif known is not None:
            given.append(known)
            option = None if known.nargs == 0 or "=" in word else known
        elif commands is not None and word in commands.choices:
            parser = commands.choices[word]
        else:
            places += 1
    return parser, option, given, places


def _commands(parser: argparse.ArgumentParser) -> "Commands | None":
    return next(
        (one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None
    )


def _options(
    parser: argparse.ArgumentParser, given: Sequence[argparse.Action]
) -> Iterator[tuple[str, str]]:
    """Yield the options that may still be given, in their long form if they have one."""
    expand = argparse.HelpFormatter(parser.prog)._expand_help
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or (
            action in given and not isinstance(action, _REPEATABLE)
        ):
            continue
        names = [name for name in action.option_strings if name.startswith("--")]
        for name in names or action.option_strings:
            yield name, textwrap.shorten(expand(action), _DESCRIPTION_WIDTH, placeholder="...")


def _arguments(
    parser: argparse.ArgumentParser, given: Sequence[argparse.Action], places: int
) -> Iterator[tuple[str, str]]:
    """Yield the commands of a group, or the choices of the next argument. If there is no next
    argument, yield the options.
    """
    commands = _commands(parser)
    if commands is not None:
        # no candidates after an unknown command
        for one in commands._choices_actions if not places else ():
            yield one.dest, textwrap.shorten(one.help or "", _DESCRIPTION_WIDTH, placeholder="...")
        return
    arguments = [one for one in parser._actions if not one.option_strings]
    if places < len(arguments):
        for choice in arguments[places].choices or ():
            yield str(choice), ""
    elif not arguments or arguments[-1].nargs not in ("*", "+"):
        yield from _options(parser, given)


def _whole_words(words: Sequence[str]) -> list[str]:
    """Return the words as the user typed them. Bash splits HOST:PORT and --name=value: there, ":"
    and "=" are words of their own.
    """
    whole: list[str] = []
    for at, word in enumerate(words):
        if word == ":" or (at and words[at - 1] == ":" and whole):
            whole[-1:] = ["".join((*whole[-1:], word))]
        elif word != "=":
            whole.append(word)
    # the value after a "=" that is the last word is empty so far
    return [*whole, ""] if words[-1] == "=" else whole
