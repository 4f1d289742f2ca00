"""The sentence, its tokens, and what GPT-2 is said to expect after two of its positions."""

from __future__ import annotations

SENTENCE = (
    "The shares of IonQ Inc. and other companies linked to quantum computing tumbled in premarket trading on "
    "Wednesday, after Nvidia Corp. Chief Executive Officer Jensen Huang said that “very useful” quantum computers are "
    "likely decades away"
)
IDS = [
    *(464, 7303, 286, 36404, 48, 3457, 13, 290, 584, 2706, 6692, 284, 14821, 14492, 256, 11137, 287, 662, 10728, 7313),
    *(319, 3583, 11, 706, 27699, 11421, 13, 5953, 10390, 10391, 32623, 31663, 531, 326, 564, 250, 548, 4465, 447, 251),
    *(14821, 9061, 389, 1884, 4647, 1497),
]
PIECES = [
    *("The", "Ġshares", "Ġof", "ĠIon", "Q", "ĠInc", ".", "Ġand"),
    *("Ġother", "Ġcompanies", "Ġlinked", "Ġto", "Ġquantum", "Ġcomputing", "Ġt", "umbled"),
    *("Ġin", "Ġpre", "market", "Ġtrading", "Ġon", "ĠWednesday", ",", "Ġafter"),
    *("ĠNvidia", "ĠCorp", ".", "ĠChief", "ĠExecutive", "ĠOfficer", "ĠJensen", "ĠHuang"),
    *("Ġsaid", "Ġthat", "ĠâĢ", "ľ", "very", "Ġuseful", "âĢ", "Ŀ"),
    *("Ġquantum", "Ġcomputers", "Ġare", "Ġlikely", "Ġdecades", "Ġaway"),
]
VOCABULARY_SIZE = 50_257

# position whose logits are read -> (the text that they really follow, the likeliest tokens, four digits).
# The chapter prints the text one token short: `[:11]` and `[:13]` leave out the tokens at positions 11 and 13
FOLLOWING = {
    11: (
        "The shares of IonQ Inc. and other companies linked to",
        {" the": 0.3923, " its": 0.0377, " Ion": 0.0170, " a": 0.0169, " it": 0.0168},
    ),
    13: (
        "The shares of IonQ Inc. and other companies linked to quantum computing",
        {" are": 0.1440, " have": 0.1428, " were": 0.0638, ",": 0.0579, " and": 0.0379},
    ),
}
