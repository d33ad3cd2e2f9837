"""Plots and sentences of the stories, as patterns for ``grammar.Writer``.

Slots: N hero, kind, they/them/their, F friend with friend (animal), fthey/fthem/ftheir, thing, thing2,
thing3, place, inplace, other, inother, adj, adj2, trait, food, elder, number.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Patterns: a reader's request, the lesson, a title, a summary in one sentence, and the beats in order."""

    request: str
    lesson: str
    title: str
    summary: str
    beats: tuple[str, ...]
    hero_is_thing: bool = False


PLOTS = (
    Plot(
        request="a {kind} who [lost|loses] a {thing}",
        lesson="[it is good to ask for help|two can search better than one]",
        title="[The Lost {thing}|{N} and the Lost {thing}|Where Is the {thing}?]",
        summary="{N} the {kind} loses a {thing} and finds it with the help of {F} the {friend}.",
        beats=(
            "{they} had a {adj} {thing} that {they} loved more than anything. [it was a gift from {their} "
            "{elder}.|{they} took it everywhere.|{they} had found it {inother}.]",
            "[one day|but one morning|then, one evening], the {thing} was gone! {N} looked [under the bed|"
            "behind the door|in every corner], [on the shelf|in the old chest|under the table], and [even in "
            "the kitchen|outside|all over the garden]. [it was nowhere.|it was not there.|there was no "
            "{thing} anywhere.] {N} [began to cry|was very sad|felt a lump in {their} throat].",
            '[just then|after some time|before long], a {friend} named {F} came by. "[why are you so sad|'
            'what is wrong|what happened], {N}?" asked {F}. "[i have lost|i cannot find] my {thing}," said '
            "{N}. \"[don't worry|do not be sad]! [i will help you look.|let us look together.|two can search "
            'better than one.]"',
            "[together they|the two of them] [went|walked|hurried] to the {other}. [they looked high and low.|"
            "they asked everyone they met.|they followed a trail of small footprints.] [at last|suddenly|"
            'finally], {F} [cried|called|shouted], "[look|there|come here]! [is this your {thing}?|i see '
            'something {adj}!]"',
            "[it was|yes, it was] the {adj} {thing}! [the wind had left it|somebody had found it|a bird had dropped "
            'it] {inother}. "[thank you, {F}|oh, thank you|you are a true friend]!" said {N}[, and gave '
            "{fthem} a big hug|, jumping with joy|].",
        ),
    ),
    Plot(
        request="a {kind} who helps a {friend}",
        lesson="[kindness always comes back|it feels good to help]",
        title="[{N} Helps a Friend|The {kind} and the {friend}|A Kind Deed]",
        summary="{N} helps {F}, a {friend} in trouble, and gets a {thing} as thanks.",
        beats=(
            "{they} liked to [walk|play|pick flowers|look for stones] {inplace}.",
            '[one day|that day|one afternoon], {N} heard a small voice. "[help|please help me|oh no]!" it '
            "said. {N} looked around and saw a {friend}. [its foot was stuck under a stone|it had fallen into "
            'a hole|it was caught in an old net|it was tangled in a thorn bush]. "[what is your name|who are '
            'you]?" asked {N}. "[i am|my name is] {F}," said the {friend}. "[i have been here all day|i '
            'cannot get out|it hurts]!"',
            "{N} [thought hard|did not wait|took a deep breath]. {they} [pulled with all {their} strength|used a "
            "long stick|found a rope|worked slowly and carefully]. [at first nothing happened|it was not "
            "easy|it took a long time], but {N} did not [give up|stop]. [pop|at last|suddenly]! {F} "
            "was free.",
            '"[you saved me|you are so kind|how kind you are]!" said {F}. "[here, take this|i want to '
            'give you this|please take this] {adj} {thing}." [{N} did not want anything, but {F} '
            "smiled and would not take it back.|{N} had never seen such a {adj} {thing}.|{N} held it up to the "
            "light and laughed.]",
        ),
    ),
    Plot(
        request="[a {kind} who is afraid|a {kind} who becomes brave|a {kind} who is afraid of the {other}]",
        lesson="[even a {kind} can be brave|a friend is worth more than any fear]",
        title="[{N} Is Not Afraid|The Brave {kind}|How {N} Became Brave]",
        summary="{N} the {kind} is afraid, but becomes brave to save {F} the {friend}.",
        beats=(
            "{they} was afraid of many things. {they} was afraid of [loud noises|big dogs|deep water|the "
            "night], and most of all {they} was afraid of the {other}.",
            '"[come and play with us {inother}|let us go to the {other}]," said the others. But {N} always '
            'shook {their} head. "[no, thank you|maybe tomorrow|i would rather stay here]," {they} said[, and '
            "looked at the ground| quietly|].",
            "[one night|one evening|then one day], {F} the {friend} did not come home. [a storm was coming.|it "
            'was getting dark.|everyone was worried.] "{F} is {inother}," said {their} {elder}. "[who will '
            "go|who can find {fthem}]?\" {N}'s heart beat fast. [{they} took a {adj} {thing} and stood up.|"
            '{they} picked up a {thing} to feel safer.] "[i will go|i will do it]," {they} said.',
            "step by step, {N} [went|walked|crept] to the {other}. [the wind howled.|every shadow looked like "
            'a monster.|{their} knees were shaking.] But {they} kept going. "{F}! {F}!" {they} called. [a '
            'weak voice answered.|"here i am!" said a small voice.] {F} was [sitting behind a rock|under a '
            "fallen tree|up in a tree], [cold and tired|too scared to move].",
            '{N} took {F} [by the hand|on {their} back|close to {their} side] and led {fthem} home. "[you are '
            'the bravest {kind} i know|you were so brave]," said {F}. {N} smiled. "[i was afraid all the time|'
            'i was very scared]," {they} said. "[but i wanted to help you|but you needed me]."',
        ),
    ),
    Plot(
        request="[a {kind} and a {friend} who share a {thing}|sharing a {thing}|two friends and a {thing}]",
        lesson="[sharing makes everyone happy|a friend is worth more than a {thing}]",
        title="[One {thing} for Two|{N}, {F} and the {thing}|Learning to Share]",
        summary="{N} and {F} argue about a {thing} and learn to share it.",
        beats=(
            "{their} best friend was a {friend} named {F}.",
            '[one day|one morning|that day], they found a {adj} {thing} {inother}. "[it is mine|i saw it first|'
            'the {thing} is mine]!" said {N}. "[no, it is mine|no, i found it|but i touched it first]!" said '
            "{F}. [they pulled and pulled.|they shouted at each other.|they turned their backs.] [the {thing} "
            "almost broke.|neither of them would let go.]",
            "[an old owl|a wise old turtle|{N}'s {elder}] [heard the noise|saw them] and asked, \"[what is all "
            'this shouting|why are you fighting]?" They [explained|told the whole story]. "[hmm|well|i see]," '
            'came the answer. "[a {thing} is no fun alone. why not take turns?|what is better, a {thing} or a '
            'friend?|one of you can have it today and the other tomorrow.]"',
            '{N} looked at {F}. "[i am sorry|that is a good idea]," {they} said. "[you can have it first|let '
            'us share it]." "[i am sorry too|thank you]," said {F}. [so they took turns.|so they played with '
            "it together.|and they put it where both could use it.] [it was much more fun.|they both were "
            "happy.|the quarrel was soon forgotten.]",
        ),
    ),
    Plot(
        request="a {kind} who makes a [gift|present] for a friend",
        lesson="[it is important to keep trying|the best presents are made with love]",
        title="[A Gift for {F}|The Best Present|The {adj} {craft}]",
        summary="{N} makes a {craft} as a present for {F}, and {F} loves it.",
        beats=(
            "[tomorrow was {F}'s birthday.|the birthday of {F} the {friend} was coming.] {N} wanted to give {fthem} "
            "something special, but {they} had no money.",
            '"[i will make a present myself|i can make something]," {they} said. {they} took some [wood|paper|'
            "wool|clay] and [some string|a brush|some glue] and began to make a {craft}. [the first one broke.|the first one was "
            "too small.|the first one looked funny.] [the second one was not right either.|the second one "
            'fell on the floor.] "[i must try again|i will not give up]," said {N}.',
            "{they} worked [all day|until it was dark|the whole afternoon]. {they} [painted it|cleaned it|tied "
            "a ribbon around it] and [smiled|was pleased]. [it was not perfect, but it was made with love.|now "
            "it looked bright and lovely.|it was the finest {craft} {inplace}.]",
            "[the next day|at the party|in the morning], {F} opened the [box|paper|present]. [{fthey} was very "
            'quiet for a moment.|{ftheir} eyes grew big.] "[did you make this|is this for me]?" {fthey} asked. "it '
            'is the best {craft} i have ever [had|seen]!" {N} [blushed|beamed|was so happy].',
        ),
    ),
    Plot(
        request="a {kind} who gets lost {inother}",
        lesson="[it is good to ask for help|it is wise to stay close to home]",
        title="[Lost {inother}|{N} Finds the Way|The Long Way Home]",
        summary="{N} gets lost {inother}, and {F} the {friend} shows the way home.",
        beats=(
            '{they} loved to explore new places. ["don\'t go too far," said {their} {elder}.|{their} {elder} '
            "always told {them} to stay close.]",
            "[but one day|one morning|that day], {N} followed a [butterfly|strange sound|small stream|trail of "
            "{adj} stones] all the way to the {other}. [when {they} looked up|when {they} turned around], "
            'nothing looked [familiar|the same]. "[where am i|which way is home]?" {they} said. {they} tried '
            "[one path|the left path], then another, but [always came back to the same place|every tree "
            "looked alike|it only got darker].",
            '[then|after a while|at last] {they} met a {friend}. "[good evening|hello|hello there]," said the '
            '{friend}. "i am {F}. [i think you are lost|you look worried]." "[yes, i am|i am lost]," said {N}. "[i live '
            '{inplace}|my home is {inplace}]." "[i know that place|that is not far]," said {F}. "[follow '
            'me|walk behind me and do not be afraid]."',
            "{F} [led the way|walked in front], past [an old well|a big rock|a field of flowers] and over [a small "
            "bridge|a low wall|the hill]. [soon|before long] {N} saw [the lights of home|a light in the window|"
            '{their} own house]. {their} {elder} [ran out|was waiting at the door] and hugged {them}. "[i was '
            'so worried|there you are]!"',
            '{N} gave {F} some {food} to say thank you. "[next time i will stay close|i will take a map next '
            'time]," {they} promised.',
        ),
    ),
    Plot(
        request="a {kind} who plants a seed",
        lesson="[good things take time|patience is stronger than doubt]",
        title="[The Little Seed|{N} Plants a Seed|Wait and See]",
        summary="{N} plants a seed, waits patiently, and it grows into something wonderful.",
        beats=(
            "[one spring day|one day], {they} found a [tiny|small] seed [in {their} pocket|on the road|inside "
            "a [box|jar|basket]].",
            "{N} dug a hole, put the seed in, and covered it with soil. {they} gave it water. [then {they} sat "
            'down and waited.|"now grow!" {they} said.] [the next day nothing had happened.|for {number} days '
            'there was nothing to see.] "[maybe it is asleep|it will never grow]," said {F} the {friend}. But '
            "{N} [watered it every morning|sang to it|did not give up].",
            "[one morning|after the rain|at last], there was a small green [leaf|shoot]! It grew [a little every "
            "day|taller and taller]. [it grew as high as the roof.|soon it was taller than {N}.] then it had a "
            "[bud|flower], and [the flower was as bright as a star|it turned into a big golden fruit|bees came "
            "from all around].",
            '{F} came to look. "[i was wrong|it is wonderful]," {fthey} said. "[how did you do it|what is the '
            'secret]?" "[you only need water, sun and time|you have to be patient]," said {N}. [they gave '
            "seeds to all their friends.|in autumn they kept the new seeds in a [jar|box|bag].]",
        ),
    ),
    Plot(
        request="[a race between|a contest between] a {kind} and a {friend}",
        lesson="[kindness is worth more than winning|a friend is worth more than a prize]",
        title="[The Great Race|The Race|{N} Against {F}]",
        summary="{N} and {F} have a race, and the friendly one wins in the end.",
        beats=(
            "[every year there was a big race {inplace}.|one day the neighbors held a race.] The prize was a "
            "{adj} {thing}.",
            '"[i will win|nobody can beat me]," said {F} the {friend}. "[i am the fastest of all|i never lose]." '
            "{N} said nothing. {they} [practiced every day|just smiled|tied {their} shoes].",
            "[ready, steady, go!|the bell rang, and off they went!] {F} ran ahead [like the wind|very fast]. {N} "
            "was [far behind|last]. [but halfway|near the bridge|in the middle of the race], {F} [stopped to "
            "rest|stopped to eat some {food}|tripped over a root and fell].",
            '{N} [could have run past|saw it]. [but {they} stopped.|{they} stopped at once.] "[are you hurt|can '
            'i help you|come on]?" {they} asked. {they} helped {F} up, and they ran on [side by side|together]. '
            '[at the finish|at the end], {F} slowed down and said, "[you go first|you should win]." [so {N} '
            "won the {thing}.|{N} won by one step.] [everybody clapped, and {F} clapped the loudest.|they "
            "shared the prize.]",
        ),
    ),
    Plot(
        request="a {kind} who finds a magic {thing}",
        lesson="[a friend is worth more than gold|it feels good to share]",
        title="[The Magic {thing}|{N} and the Magic {thing}|Three Wishes]",
        summary="{N} finds a magic {thing}, makes wishes, and learns what really matters.",
        beats=(
            "[one day|one night], {they} found a {adj} {thing} {inother}. [when {they} touched it|when {they} "
            'rubbed it], it began to [glow|hum|speak]. "[i am a magic {thing}|you have found me]," it said. '
            '"you have three wishes."',
            '{N} thought about it. "[i wish for|i would like] a mountain of {food}!" {they} said. [poof|whoosh]! '
            'a mountain of {food} stood before {them}. [it was too much to eat.|{they} ate until {their} belly hurt.] "[now '
            'i wish for|next, i want] a {adj2} {thing2}!" And there it was. [but it was lonely to play with it '
            "alone.|but soon it was boring.]",
            "{N} had one wish left. {they} [sat and thought for a long time|asked {their} {elder} for advice]. "
            '[{F} the {friend} walked by and looked sad.|then {they} heard {F} the {friend} crying.] "[what is '
            'wrong|why are you crying]?" "[i have no home|i have no friends|my house was washed away]," said '
            "{F}.",
            '"[then i wish for a house for {F}|i wish that {F} may be happy]," said {N}. The {thing} [glowed '
            "once more|shone brightly] and [went dark|was just a {thing} again]. [but now {N} had a real friend.|"
            '{F} laughed with joy.] "[that was the best wish of all|that was worth more than anything]," {they} '
            "said.",
        ),
    ),
    Plot(
        request="a {kind} who [goes on a trip|visits the {other}]",
        lesson="[there is always something new to see|a day together is the best gift]",
        title="[A Day {inother}|{N} Goes on a Trip|The Visit]",
        summary="{N} spends a day {inother} with {their} {elder} and brings home a {thing}.",
        beats=(
            "[today|one day] {they} went on a trip with {their} {elder}. [they packed {food} and a {thing2}.|{N} "
            "put a {thing2} and some {food} into a bag.]",
            "[they took the bus|they walked for an hour|they rode on a wagon] to the {other}. {N} had never seen "
            "[anything so big|such a beautiful place]. [there were birds everywhere.|the air smelled of "
            'flowers.|a friendly {friend} was sitting in the sun.] "[look at that!|can we go closer?]" said {N}. '
            '"[of course|yes, but be careful]," said {their} {elder}.',
            "at noon they ate their {food}. Then they [played hide and seek|looked for stones|drew pictures]. {N} "
            'found a {adj} {thing} [in the sand|between two rocks|under a leaf]. "[may i keep it|is this '
            'mine now]?" {they} asked. "[yes, you may|ask the {friend} first]," said {their} {elder} with a '
            "smile.",
            "[when the sun went down|in the evening], they went home. {N} was [tired but happy|very sleepy]. {they} "
            "put the {thing} [next to {their} bed|on the window sill] and [dreamed of the {other}|fell asleep "
            "at once].",
        ),
    ),
    Plot(
        request="a {kind} who tells a lie about a {fragile}",
        lesson="[it is always best to be honest|the truth makes the heart light]",
        title="[The Broken {fragile}|{N} Tells the Truth|An Honest {kind}]",
        summary="{N} breaks a {fragile}, is afraid to say so, and then tells the truth.",
        beats=(
            "[one day|on a quiet afternoon], {they} was playing in the house. crash! {their} {elder}'s {adj} "
            "{fragile} fell down and broke.",
            "{N} was [frightened|afraid]. {they} hid the pieces [under the rug|behind the door|in a box]. When "
            '{their} {elder} came in and asked, "[where is my {fragile}|have you seen my {fragile}]?" {N} said, "[the '
            "{friend} took it|i don't know].\" [but {their} face turned red.|but {their} voice was very small.]",
            'all [evening|day] {N} felt [bad|heavy inside]. {they} could not [eat {their} {food}|play|sleep]. "[it '
            'is not right to lie,|what should i do?]" {they} thought. [at last {they} made up {their} mind.|then '
            "{they} knew what to do.]",
            '{N} went to {their} {elder} and said, "[i broke your {fragile}. i am sorry.|it was me. i am so '
            'sorry.]" {their} {elder} [was quiet for a moment|looked at {them} kindly]. "[thank you for telling '
            'me the truth|i am glad you told me]," came the answer. "[a {fragile} can be mended|we can fix it '
            'together]." [so they took some glue and fixed it.|together they put the pieces back.]',
        ),
    ),
    Plot(
        request="a {kind} and a {friend} who [become friends|meet for the first time]",
        lesson="[it is good to say hello first|a new friend may be very near]",
        title="[A New Friend|{N} Meets {F}|The New Neighbor]",
        summary="{N} is lonely until {F} the {friend} moves in, and they become friends.",
        beats=(
            "{N} had many [toys|books|games], but no one to play with. [every day {they} looked out of the "
            "window.|some days were very long.]",
            "[one day|one morning], a {friend} moved into the house next door. [it carried a {adj} {thing} under "
            "its arm.|there were boxes everywhere, and a {adj} {thing}.] {N} wanted to say hello, but {they} was "
            "[too shy|afraid to be laughed at]. {they} [hid behind a tree|watched through the fence].",
            "then [the wind blew a hat over the fence|a hat flew over the wall|a hat came flying through the air]. "
            '{N} picked it up. "[here is your hat|here you are]," {they} said. "[thank you|yes, thank you so much]! i '
            'am {F}. [do you want to play|would you like some {food}]?" "[yes, please|i would love to]," said '
            "{N}.",
            "they [played all afternoon|built a tower|told each other stories] and [laughed a lot|forgot the "
            'time]. [{F} was good at climbing, and {N} was good at riddles.|{F} taught {N} a new song.] "[can we '
            'meet again tomorrow|will you come back tomorrow]?" asked {F}. "[every day|of course]," said {N}.',
        ),
    ),
    Plot(
        request="a {kind} who loves the {weather}",
        lesson="[there is something good in any weather|it is fun to try new things]",
        title="[{N} and the {weather}|The {kind} Who Loved the {weather}|{weather}]",
        summary="{N} loves the {weather} and shows {F} the {friend} how wonderful it is.",
        beats=(
            '{they} loved the {weather} more than anything. [when the others ran inside, {N} ran outside.|"listen to '
            'the {weather}!" {they} always said.|nobody knew why.]',
            '"[why do you like the {weather} so much|what is so nice about the {weather}]?" asked {F}, a {friend}. "i '
            'do not like it at all. [it makes me shiver.|i would rather stay in bed.|it spoils my games.]" {N} [only '
            'smiled|thought for a moment]. "[come with me|take my hand]," {they} said. "i will show you."',
            'they went out together. [first they stood still and listened.|first they closed their eyes.] "[what do you '
            'hear|what can you hear]?" asked {N}. "[i hear a song|it sounds like music|it is like a whisper]," said {F}. '
            "[then they danced and jumped.|then they ran up the hill and down again.|then they built a little house of "
            "leaves.] [on the way back they found a {adj} {thing}.|{F} laughed louder than ever.]",
            'when they came home, {their} {elder} gave them some {food}. "[now i understand|you were right]," said '
            '{F}. "[the {weather} is wonderful|i like the {weather} too|tomorrow we must go again]."',
        ),
    ),
    Plot(
        request="[a {kind} who bakes a cake|a {kind} who cooks for everyone|a {kind} and a big dinner]",
        lesson="[it is good to ask for help|many hands make light work]",
        title="[The Big Dinner|{N} Cooks|A Cake for Everyone]",
        summary="{N} cooks for all the neighbors and gets help from {F} the {friend}.",
        beats=(
            "[today was a holiday.|it was almost time for the great feast.] {N} wanted to cook something for everyone. "
            '[but {they} had never cooked before.|"it will be the best dinner ever," {they} said.]',
            "{they} put [flour and milk|eggs and sugar|butter and honey] into a big pot and stirred. [soon the pot was too "
            'full.|the spoon broke.|there was smoke everywhere.] "[oh no|oh dear]!" said {N}. "[it is all wrong|this '
            'smells terrible|what a mess]!"',
            '{F}, a {friend}, looked in at the window. "[may i help|do you need help|can i come in]?" {fthey} asked. "[my '
            '{elder} taught me how to cook|i know a good recipe]." [they washed the pot and began again.|together they '
            "cleaned the kitchen and started once more.] {F} measured, and {N} stirred. [one cup, two cups, three cups.|slowly, "
            "slowly.] [soon it smelled wonderful.|after an hour it was ready.]",
            "[all the neighbors came|everyone came with a hungry belly] and sat at a long table. they ate [every crumb|"
            'until they could eat no more]. "[who made this|who is the cook]?" they asked. "[we did it together|{F} and '
            'i did]," said {N}[ proudly| with a smile|].',
        ),
    ),
    Plot(
        request="[a {kind}|a {adj} {kind}|a {kind} that wants to see the world|a little {kind}]",
        lesson="[even the smallest can see the world|a friend makes any place a home]",
        title="[The Little {kind}|{N} the {kind}|The {kind} That Wanted to See the World]",
        summary="{N} the {kind} wants to see the world and finds a friend, {F} the {friend}.",
        hero_is_thing=True,
        beats=(
            '[every day was the same.|nobody ever looked at it.|it was the smallest of all.] "[i want to see the '
            'world|there must be more than this|one day i will go far away]," thought {N}.',
            "[one night|one morning], a strong wind came and carried {N} away. [up, up, over the roofs!|over the hills and "
            "far away!] It [saw the sea for the first time|flew past the moon|saw fields like little green squares]. [it was "
            "wonderful.|it was a little frightening, too.]",
            "[at last|then] the wind grew tired, and {N} landed {inother}. [it was all alone.|everything was strange and "
            'new.] A {friend} came by. "[a {kind}|what a lovely {kind}]! [where do you come from|how did you get here]?" '
            '"[the wind brought me|i wanted to see the world]," said {N}. "[but now i do not know what to do|but now i '
            'miss my home]."',
            '"i am {F}," said the {friend}. "[stay with me|let me take care of you|we can travel together]. [i have always '
            'wanted a {kind}|i need a friend like you]." [so {N} stayed.|and that is what they did.] {F} [cleaned it until '
            "it was bright again|told it stories every evening|put it in the best place of the house].",
            '{N} [was happy at last|did not feel small any more]. [the world was big, but this was home.|"the best thing in '
            'the world is a friend," it said.]',
        ),
    ),
    Plot(
        request="[a storm|a {kind} in a storm|a {kind} and a storm]",
        lesson="[a small light can be a big help|it is good to think of others]",
        title="[The Storm|{N} and the Storm|A Light in the Night]",
        summary="{N} lights a fire in a storm so that {F} the {friend} finds the way home.",
        beats=(
            "[one evening|that night], dark clouds came over the {place}. [the wind began to howl.|the first drops fell.|there "
            'was thunder far away.] "[a storm is coming|we must go inside]," said {their} {elder}.',
            "{N} [closed the door|shut all the windows] and sat down by the fire. [suddenly|then] {they} remembered {F} the "
            '{friend}. "[{F} is still out there|{F} went to the {other} this morning]!" {they} cried. "[how will {fthey} find '
            'the way in the dark|who will help {fthem}]?"',
            "{N} had an idea. {they} took a lantern and climbed [onto the roof|up the tower|to the top of the hill]. [the "
            "rain was cold.|the wind almost blew {them} down.] {they} held the light up high [and waved it|with both hands]. "
            "[one hour went by.|{their} arms hurt, but {they} did not stop.]",
            'far away, {F} was [lost and wet|cold and afraid]. [then {fthey} saw a small light.|"what is that light?" '
            '{fthey} thought.] {F} walked toward it, step by step, until {fthey} stood at the door. "[your light '
            'saved me|i saw your light]!" said {F}. They drank hot tea and listened to the storm together. [in the morning the sun '
            "was shining.|it did not seem so bad any more.]",
        ),
    ),
)
