"""Texts for the viewer tests."""

SHORT = "The acting is superb, but the story is so dull that I wanted to leave."
# Right to left with left to right inside, beside signs of one, two and many UTF-16 units.
MIXED = "הסרט הזה היה נפלא 🎬, but the end 👩‍👩‍👧‍👦 was not good. שלום café!"
# Of most texts in other languages, a model of English cannot tell.
FOREIGN = (
    "Pociąg odjeżdża o dziewiątej z peronu drugiego.",
    "Juna lähtee yhdeksältä raiteelta kaksi.",
    "Der Zug fährt um neun von Gleis zwei.",
)
PAIR = ("the film was not good at all", "but i liked the end")
ATTACK = (
    "<img src=x onerror=alert(1)> good <script>alert(2)</script> film <svg onload=alert(3)> \"'><b onmouseover=alert(4)>bad</b> ${alert(5)}"
)

_SENTENCES = """
We went to see it on the first Friday, expecting very little, and for half an hour it was better than anything I have seen this year.
The lead, who has hardly a line in the first act, says more with one look across the kitchen table than most actors do in a whole film.
Then the plot begins, and it is a pity: a letter is found, a secret is told, and everybody explains to everybody what we have already
understood. The music is lovely throughout, quiet and a little strange, and the night scenes by the harbour are among the best things
this cameraman has done. But the dialogue in the second half is so wooden that people behind us laughed in the wrong places, and I
cannot say that I blame them. There is a chase, which nobody needed; there is a dog, which everybody liked; and there is a wedding that
goes on for twenty-five minutes. My wife was moved to tears by the last scene, and I was moved to look at my watch, so between us we
must have had an average evening. If it had ended at the station, with the door closing and no word spoken, I would have called it a
small masterpiece and told all my friends. As it is, I can only recommend it to those who have patience, a warm coat, and somebody to
argue with on the way home afterwards. The director has talent, no doubt about it, and one day he will meet a writer who does not let
him down as badly as this one did.
"""


def review(words: int) -> str:
    """A film review of ``words`` words, whose later paragraphs are like its first."""
    sentences = " ".join(_SENTENCES.split()).split(" ")
    return " ".join((sentences * (words // len(sentences) + 1))[:words])
