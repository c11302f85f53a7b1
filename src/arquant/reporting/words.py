"""The terms of a report, each explained in a sentence or two where a stranger meets it."""

WORDS = {
    "smoothed classifier": "The model that is certified: many copies of an image with random noise are classified, and the "
    "class with most votes is the answer. A single pass of the network is another model, of which nothing is claimed.",
    "σ": "The strength of the noise: its standard deviation, where 1 is the whole range from black to white.",
    "vote": "The class that the network gives to one noisy copy. n votes bound the probability of the class; more votes prove "
    "larger radii.",
    "radius (R)": "How far an image may be changed, all values together, before the certificate ends.",
    "certificate": "A class and a radius for one image: within that distance the smoothed classifier's answer cannot change, "
    "except with a probability of at most α. It says that the answer is stable, not that it is right.",
    "α": "The chance, over the noise, that the certificate of an image is false.",
    "abstained": "Too few votes agreed for a certificate; nothing is claimed of the image.",
    "certified accuracy at r": "The share of all images that are right with a radius of at least r.",
    "ACR": "Average certified radius over all images; wrong and abstained ones count 0. It hides where a model gains and where "
    "it loses: read it beside certified accuracy at small and large radii.",
    "p_A": "The probability that the network is right on a noisy copy of an image, estimated by its share of the votes.",
    "tie": "A difference whose 95 % interval holds 0: other images might have shown the opposite.",
    "w3a4": "3 bits for the weights and 4 for the inputs of a layer. Mixed networks have other widths in other layers; the "
    "first and the last layer have 8.",
    "bit operations": "Multiplications, each times the widths of both factors: what hardware with such arithmetic would spend.",
    "control": "A network that is certified beside the one of interest, to tell what made the difference.",
}

TERMS = {
    "σ": "σ", "vote": r"\bvotes?\b", "certificate": r"\b[Cc]ertificates?\b", "ACR": r"\bACR\b",
    "bit operations": "bit operations", "control": r"\b[Cc]ontrol\b", "radius (R)": r"\bradius\b", "tie": r"\bties?\b",
}  # fmt: skip
"""how these terms look in a sentence"""
