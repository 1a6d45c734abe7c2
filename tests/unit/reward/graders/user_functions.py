"""What a user may name as graders."""

NUMBER = 1


def share(*, prompt, response, label):
    assert prompt == "p"
    return len(label) / len(response)


def raises(*, prompt, response, label):
    raise RuntimeError("no")


def nothing(*, prompt, response, label):
    return None


def not_a_number(*, prompt, response, label):
    return float("nan")


def text(*, prompt, response, label):
    return "1"
