"""What failed, out of the text that Spark makes of it."""

import re


def reason(text: str) -> str:
    """The sentence that matters of *text*, which Spark fills with stacks and plans: ours where there is one."""
    ours = re.findall(r"ogive\.(?:errors|spark\.\w+)\.\w+: (.+)", text)
    return str(ours[-1] if ours else text.strip().partition("\n")[0]).strip() or "Spark failed without saying why"
