"""The one exception that stands for a user's mistake."""


class UserError(Exception):
    """A mistake of the user's, told in one line: where, what was found, what to do.

    The command line prints the message alone and exits with 2; anything else that escapes is a bug of ours.
    Messages never quote the text of a dialogue, a card or a post: those are private.
    """
