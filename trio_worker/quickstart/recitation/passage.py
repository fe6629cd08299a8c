# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The passage that the model recites, written for this project.

Plain ASCII: with the byte-level tokenizer a character is a token, so that a lost, doubled or
reordered token shows as a lost, doubled or reordered letter.
"""

PASSAGE = """\
The Keeper of the Weir

Where the river splits in two, an old woman keeps the weir, and she has one rule: no water \
leaves by a way she cannot name. In spring the flood arrives before the birds do. She opens the \
gates by turns, and under each of them a channel runs out, thin as a thread or wide as a road, \
to the mills and the gardens and the fish ponds below.

Visitors ask how she sleeps while so much is moving in the dark. She shows them the basin. \
Every channel that begins at the weir comes home to it, however far it wanders; and until the \
last one is back, the evening gate stays open. If a bank gives way, a bell rings here, not in \
some village that never heard of us. Then she lowers the boards, one by one, each pond is given \
its minute to settle, and what was lent to the fields is counted as it returns.

"Others let their streams run loose," she says. "It looks like freedom, till a cellar fills at \
midnight and nobody can tell you whose water it is."

So when frost comes, or orders from the town, she does not shout and she does not hurry. She \
shuts the upper sluice, waits for the wheels to stand still, walks the whole length of the \
stones with a lantern, and finds them dry. Only after that does she hang up her key. Listen: \
nothing is running now. Whatever she started has ended, and the river, which was never hers, \
goes on."""
