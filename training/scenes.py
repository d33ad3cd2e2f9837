"""Beginnings and endings of stories, and scenes that fit anywhere; patterns with the slots of ``plots``.

``{lesson}`` in a moral is the lesson of the story's plot.
"""

from __future__ import annotations

OPENINGS = (
    "[once upon a time|long ago|once|a long time ago], a {trait} {kind} named {N} lived {inplace}.",
    "{N} was a {trait} [little|young|] {kind} who lived {inplace}.",
    "{inplace} lived a {trait} {kind}[. {their} name was {N}.| called {N}.| whose name was {N}.]",
    "[one|on a] [sunny|bright|cold|windy|foggy|warm|quiet] [morning|day|afternoon], a {kind} named {N} "
    "[went for a walk|sat down to think|was playing|woke up early] {inplace}.",
    "there was once a {kind} named {N}. {N} was very {trait}[, and everyone {inplace} knew it|].",
    "[everyone|all the neighbors] {inplace} knew {N}, the {trait} {kind}.",
    "in a [small|cozy|little|crooked|tiny] house {inplace}, there lived a {trait} {kind} named {N}.",
    "it was [the first day of spring|a rainy autumn day|the middle of winter|a hot summer day]. "
    "{N}, a {trait} {kind}, was {inplace}.",
)

SCENES = (
    "[on the way|along the path], {they} [saw|passed|noticed] [a {adj2} {thing3} lying in the grass|a row "
    "of ducks crossing the road|two old men playing cards|a rainbow over the hills]. [{they} smiled and "
    "walked on.|it made {them} feel a little better.|but there was no time to stop.]",
    "[soon|after a while|then] it began to [rain|snow|get dark]. {N} [hid under a big tree|ran to a small "
    "hut|pulled {their} coat tight] and [waited|counted to one hundred|sang a song] until it [was over|"
    "was quiet again].",
    "{they} grew hungry, so {they} sat down and ate some {food}. [it tasted wonderful.|it was the best {food} "
    "{they} had ever had.|{they} saved a little for later.]",
    "that night, {N} could not sleep. {they} [looked at the stars|listened to the wind|thought about the "
    "day] and [wondered what to do|made a plan|hoped for a better day]. [in the morning {they} felt "
    "strong again.|at last {they} closed {their} eyes.|when the sun came up, {they} was ready.]",
    "{their} {elder} had always said, \"[be patient, and things will get better|kind words open doors|"
    "a small step is still a step|never be afraid to ask for help|look twice before you leap].\" {N} "
    "thought about these words.",
    "[a crow|an old turtle|a squirrel|a small bird] called down from [a branch|the roof|a rock], "
    "\"[where are you going, {N}|what are you looking for|why are you in such a hurry]?\" \"[i will "
    "tell you later|it is a long story|come along and see]!\" said {N}.",
    "{N} counted {their} steps to stay calm. [one, two, three, four, five.|ten, twenty, thirty.] [it "
    "helped.|soon {they} was not so nervous.]",
)  # fmt: skip

ENDINGS = (
    "[from that day on|after that day], {N} and {F} [were best friends|met every day|were never apart].",
    "[that evening|that night], {N} [went to bed with a smile|slept well|told {their} {elder} all about it].",
    "[it had been a good day.|what a day it had been!|it was the best day of the year.]",
    "and they all [lived happily|laughed|danced until the moon came up].",
    "{N} [never forgot that day|remembered it for a long, long time|still tells this story today].",
    "everyone {inplace} [cheered|clapped] for {N}.",
    "then they [went home together|shared some {food}|sat by the fire and told stories].",
    "the end.",
)

MORALS = (
    "{N} had learned that {lesson}.",
    '"[now i know it|i see it now]," said {N}. "{lesson}."',
    "and so {N} [learned|found out] that {lesson}.",
)
