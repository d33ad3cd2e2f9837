"""Word lists and fact tables of the corpus.  Plain data, written by hand."""

from __future__ import annotations

GIRLS = (
    "Lily Mia Anna Emma Zoe Clara Ruby Nora Ella Maya Rosa Ivy Hana Lucy Sara Amy Tess Jane Molly "
    "Daisy Ada Leah Nina Eva Alice Grace Sofia Priya Kate Elsie"
).split()
BOYS = (
    "Tom Ben Max Sam Leo Jack Finn Omar Noah Eli Luke Adam Hugo Theo Oscar Ravi Ivan Peter Kai Dan "
    "Milo Felix Henry Joe Alex Marco Will Owen Toby Nate"
).split()
PET_NAMES = (
    "Pip Biscuit Dot Fern Hazel Moss Pepper Button Clover Nutmeg Sunny Poppy Bramble Olive Rusty "
    "Waffle Pebble Juniper Tango Bean"
).split()

ANIMALS = (
    "fox rabbit mouse bear owl squirrel hedgehog duck frog turtle cat dog puppy kitten pig goat "
    "sheep cow horse pony hen goose swan crow robin sparrow parrot penguin whale dolphin seal otter "
    "beaver badger mole deer wolf lion tiger elephant giraffe monkey zebra hippo crab snail bee ant "
    "spider butterfly ladybug dragon lizard panda koala kangaroo camel donkey hamster bat raccoon"
).split()

PEOPLE = (
    "boy girl farmer baker king queen prince princess knight sailor wizard teacher doctor painter "
    "shepherd fisherman gardener clockmaker carpenter singer robot giant pirate miller tailor "
    "postman cook dancer inventor librarian"
).split()

PLACES = {
    "forest": "in", "village": "in", "garden": "in", "meadow": "in", "castle": "in", "cave": "in",
    "desert": "in", "valley": "in", "city": "in", "park": "in", "barn": "in",
    "library": "in", "market": "in", "school": "at", "farm": "on", "hill": "on", "mountain": "on",
    "island": "on", "beach": "on", "river": "by", "lake": "by", "sea": "by", "lighthouse": "by",
    "bridge": "near", "mill": "near", "harbor": "in", "jungle": "in", "field": "in", "tower": "in",
}  # fmt: skip

THINGS = (
    "ball kite key hat scarf book drum bell lantern map boat basket blanket cup spoon ring button "
    "coin stone shell feather flower apple pear cake cookie pie jar box chest clock lamp candle "
    "mirror brush pencil letter whistle flute guitar doll teddy wagon bicycle ladder rope bucket "
    "shovel broom umbrella glove boot sock coat crown necklace ribbon star telescope wheel pillow "
    "chair bowl mushroom pumpkin sled top puzzle camera painting kettle balloon bag"
).split()
CRAFTS = (
    "kite scarf basket doll drum ring box boat lantern whistle necklace hat puzzle flute crown "
    "blanket painting teddy sled bowl candle ribbon"
).split()
FRAGILE = "lamp cup bowl mirror jar clock doll flute necklace camera lantern kettle bell".split()
LIVELY_THINGS = (
    "boat kite lamp clock bell drum teddy doll star cloud tree bicycle umbrella train candle "
    "snowman pencil balloon lantern raindrop leaf wagon ship teapot"
).split()
COUNTED = (
    "apples books coins stones shells marbles pencils cookies eggs flowers stamps cards oranges toys "
    "candies stickers buttons balloons pears nuts carrots cups balls stars"
).split()

ADJECTIVES = (
    "small big old new shiny red blue green yellow round soft warm bright tiny golden silver "
    "wooden beautiful strange pretty striped heavy light smooth dusty little lovely purple white"
).split()

TRAITS = (
    "brave kind curious clever shy quiet cheerful patient stubborn gentle lazy proud careful "
    "honest playful lonely hungry sleepy forgetful friendly wise happy busy"
).split()

FEELINGS = "happy sad proud worried excited tired scared calm glad surprised angry thankful".split()

COLOURS = {
    "grass": "green", "the sky": "blue", "the sky on a clear day": "blue", "snow": "white", "coal": "black",
    "a ripe banana": "yellow", "a ripe strawberry": "red", "a carrot": "orange", "milk": "white",
    "chocolate": "brown", "the sun": "yellow", "blood": "red", "an elephant": "gray",
    "a lemon": "yellow", "a tomato": "red", "a leaf in summer": "green", "a crow": "black",
    "a frog": "green", "a flamingo": "pink", "a pumpkin": "orange", "a polar bear": "white",
    "an eggplant": "purple", "sand": "yellow", "a fire engine": "red", "a cherry": "red",
    "a cucumber": "green", "a swan": "white", "a lime": "green", "a plum": "purple",
}  # fmt: skip

OPPOSITES = {
    "hot": "cold", "big": "small", "up": "down", "fast": "slow", "happy": "sad", "day": "night",
    "open": "closed", "full": "empty", "high": "low", "light": "dark", "old": "new", "wet": "dry",
    "hard": "soft", "loud": "quiet", "early": "late", "near": "far", "left": "right", "in": "out",
    "first": "last", "long": "short", "strong": "weak", "clean": "dirty", "rich": "poor",
    "young": "old", "thick": "thin", "true": "false", "easy": "difficult", "heavy": "light",
    "push": "pull", "begin": "end", "win": "lose", "buy": "sell", "give": "take", "love": "hate",
    "awake": "asleep", "above": "below", "brave": "afraid", "sharp": "dull", "deep": "shallow",
    "wide": "narrow", "sweet": "sour", "rough": "smooth", "safe": "dangerous", "front": "back",
    "summer": "winter", "yes": "no", "always": "never", "more": "less", "tall": "short",
    "beautiful": "ugly", "busy": "idle", "cheap": "expensive", "remember": "forget",
}  # fmt: skip

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "England": "London", "Ireland": "Dublin", "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi",
    "Russia": "Moscow", "Egypt": "Cairo", "Kenya": "Nairobi", "Greece": "Athens", "Turkey": "Ankara",
    "Poland": "Warsaw", "Austria": "Vienna", "Hungary": "Budapest", "Norway": "Oslo", "Peru": "Lima",
    "Sweden": "Stockholm", "Denmark": "Copenhagen", "Finland": "Helsinki", "Canada": "Ottawa",
    "Mexico": "Mexico City", "Cuba": "Havana", "Brazil": "Brasilia", "Chile": "Santiago",
    "Argentina": "Buenos Aires", "Australia": "Canberra", "New Zealand": "Wellington",
    "Thailand": "Bangkok", "Vietnam": "Hanoi", "South Korea": "Seoul", "Iran": "Tehran",
    "Iraq": "Baghdad", "Belgium": "Brussels", "the Netherlands": "Amsterdam", "Iceland": "Reykjavik",
    "Switzerland": "Bern", "Morocco": "Rabat", "Nigeria": "Abuja", "Ghana": "Accra",
    "Ukraine": "Kyiv", "Romania": "Bucharest", "Bulgaria": "Sofia", "Nepal": "Kathmandu",
    "the United States": "Washington, D.C.", "Indonesia": "Jakarta", "the Philippines": "Manila",
}  # fmt: skip

# animal: (legs, sound, food, home, baby)
ANIMAL_FACTS = {
    "dog": (4, "woof", "meat", "a kennel", "puppy"), "cat": (4, "meow", "fish", "a house", "kitten"),
    "cow": (4, "moo", "grass", "a barn", "calf"), "horse": (4, "neigh", "hay", "a stable", "foal"),
    "sheep": (4, "baa", "grass", "a field", "lamb"), "pig": (4, "oink", "corn", "a pen", "piglet"),
    "duck": (2, "quack", "water plants", "a pond", "duckling"),
    "hen": (2, "cluck", "seeds", "a coop", "chick"), "goat": (4, "bleat", "leaves", "a farm", "kid"),
    "lion": (4, "roar", "meat", "the grassland", "cub"), "frog": (4, "croak", "flies", "a pond", "tadpole"),
    "owl": (2, "hoot", "mice", "a hollow tree", "owlet"), "bear": (4, "growl", "berries and fish", "a den", "cub"),
    "bee": (6, "buzz", "nectar", "a hive", "larva"), "wolf": (4, "howl", "meat", "a den", "pup"),
    "mouse": (4, "squeak", "cheese and seeds", "a hole", "pup"), "goose": (2, "honk", "grass", "a pond", "gosling"),
    "rabbit": (4, "a soft squeak", "carrots and grass", "a burrow", "kit"),
    "snake": (0, "hiss", "mice", "a hole", "snakelet"), "spider": (8, "no sound", "flies", "a web", "spiderling"),
    "ant": (6, "no sound", "crumbs", "an anthill", "larva"), "fish": (0, "no sound", "worms", "the water", "fry"),
    "elephant": (4, "trumpet", "leaves and grass", "the savanna", "calf"),
    "crow": (2, "caw", "seeds and insects", "a nest", "chick"), "monkey": (2, "chatter", "fruit", "the trees", "infant"),
    "penguin": (2, "honk", "fish", "the ice", "chick"), "butterfly": (6, "no sound", "nectar", "the meadow", "caterpillar"),
    "kangaroo": (2, "a soft cluck", "grass", "the plains", "joey"), "deer": (4, "bleat", "leaves", "the forest", "fawn"),
}  # fmt: skip

CATEGORIES = {
    "fruit": "apple banana pear grape orange cherry peach mango plum lemon melon strawberry".split(),
    "vegetable": "carrot potato onion cabbage pea bean spinach lettuce turnip cucumber".split(),
    "color": "red blue green yellow purple orange black white pink brown".split(),
    "animal": "dog cat horse lion rabbit elephant mouse bear wolf fox".split(),
    "bird": "owl eagle robin sparrow duck swan crow parrot penguin goose".split(),
    "tool": "hammer saw drill wrench shovel axe rake screwdriver ladder".split(),
    "musical instrument": "piano violin drum flute guitar trumpet harp cello".split(),
    "piece of furniture": "chair table bed sofa desk shelf bench cupboard".split(),
    "vehicle": "car bus train bicycle truck boat plane ship tram".split(),
    "piece of clothing": "shirt hat coat sock scarf glove dress sweater".split(),
    "planet": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split(),
    "sport": "tennis football swimming running chess hockey rowing skiing".split(),
    "drink": "water milk tea juice coffee lemonade cocoa".split(),
    "insect": "ant bee butterfly beetle fly moth grasshopper".split(),
    "shape": "circle square triangle rectangle oval hexagon".split(),
    "tree": "oak pine maple birch willow elm cedar".split(),
    "flower": "rose tulip daisy lily violet sunflower poppy".split(),
}

JOBS = {
    "baker": "bakes bread and cakes", "farmer": "grows food and looks after animals",
    "doctor": "helps sick people get well", "teacher": "helps children learn",
    "pilot": "flies planes", "sailor": "works on a ship", "painter": "paints pictures or walls",
    "carpenter": "makes things out of wood", "firefighter": "puts out fires and rescues people",
    "librarian": "looks after books and helps people find them", "tailor": "makes and mends clothes",
    "fisherman": "catches fish", "gardener": "takes care of plants and flowers",
    "postman": "brings letters and parcels", "dentist": "takes care of teeth",
    "cook": "prepares meals", "shepherd": "looks after sheep", "miner": "digs coal or metal out of the ground",
    "plumber": "repairs pipes and taps", "musician": "plays music", "judge": "decides cases in a court",
    "nurse": "takes care of patients", "astronaut": "travels into space", "vet": "treats sick animals",
}  # fmt: skip

USES = {
    "umbrella": "keep dry in the rain", "key": "open a lock", "pen": "write", "spoon": "eat soup",
    "knife": "cut food", "clock": "tell the time", "lamp": "give light", "broom": "sweep the floor",
    "bed": "sleep", "boat": "travel on water", "map": "find the way", "ladder": "climb up high",
    "needle": "sew clothes", "oven": "bake bread", "towel": "dry ourselves", "soap": "wash our hands",
    "telescope": "look at the stars", "thermometer": "measure how warm it is", "scissors": "cut paper",
    "bucket": "carry water", "glasses": "see better", "hammer": "drive in nails", "rope": "tie things",
    "bell": "call people", "kettle": "boil water", "bridge": "cross a river", "phone": "talk to people far away",
}  # fmt: skip

WHY = {
    "do we sleep": "We sleep because our bodies and brains need rest to grow and stay healthy.",
    "is the sky blue": "The sky looks blue because air scatters blue light more than red light.",
    "do leaves fall in autumn": "Trees drop their leaves in autumn to save water and energy for the winter.",
    "do birds fly south": "Many birds fly south in winter because it is warmer there and they find more food.",
    "does ice float": "Ice floats because it is lighter than the same amount of water.",
    "do we have seasons": "We have seasons because the Earth is tilted as it goes around the sun.",
    "do we need water": "We need water because every part of the body uses it to work and to stay cool.",
    "does it rain": "It rains when tiny drops of water in clouds join and become too heavy to stay up.",
    "do bees visit flowers": "Bees visit flowers to collect nectar and pollen, which they use as food.",
    "is the sea salty": "The sea is salty because rivers carry salt from rocks into it.",
    "do we brush our teeth": "We brush our teeth to remove food and germs so that they stay healthy.",
    "does the moon shine": "The moon shines because it reflects the light of the sun.",
    "do plants need sunlight": "Plants need sunlight because they use its energy to make their food.",
    "do cats have whiskers": "Cats have whiskers to feel what is close to them, even in the dark.",
    "do we wear coats in winter": "We wear coats in winter because they keep the warmth of our bodies in.",
    "do we see lightning before thunder": "We see lightning first because light travels much faster than sound.",
    "do dogs wag their tails": "Dogs wag their tails to show how they feel, often because they are happy.",
    "do stars twinkle": "Stars twinkle because their light passes through moving air before it reaches us.",
    "do we yawn": "We often yawn when we are tired or bored.",
    "do we have bones": "Bones hold the body up, protect soft parts and help us move.",
}  # fmt: skip

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
CITIES = sorted(
    set(CAPITALS.values()) | {"Oakton", "Milltown", "Riverside", "Hillview", "Lakeford"}
)
SURNAMES = (
    "Smith Brown Garcia Patel Kim Novak Rossi Lopez Meyer Silva Khan Berg Jones Clark".split()
)
FOODS = (
    "bread soup cheese pancakes rice apples honey noodles salad porridge dumplings tomatoes beans "
    "potatoes eggs pie jam nuts berries toast"
).split()

PAST = {
    "go": "went", "eat": "ate", "see": "saw", "run": "ran", "take": "took", "give": "gave",
    "find": "found", "make": "made", "come": "came", "write": "wrote", "sing": "sang",
    "swim": "swam", "fly": "flew", "buy": "bought", "think": "thought", "know": "knew",
    "sleep": "slept", "break": "broke", "begin": "began", "bring": "brought", "walk": "walked",
    "jump": "jumped", "play": "played", "help": "helped", "cook": "cooked", "plant": "planted",
}  # fmt: skip
PLURALS = {
    "mouse": "mice", "foot": "feet", "tooth": "teeth", "child": "children", "man": "men",
    "woman": "women", "goose": "geese", "leaf": "leaves", "wolf": "wolves", "sheep": "sheep",
    "fish": "fish", "box": "boxes", "baby": "babies", "city": "cities", "knife": "knives",
    "cat": "cats", "dog": "dogs", "book": "books", "tree": "trees", "apple": "apples",
    "berry": "berries", "bus": "buses", "potato": "potatoes", "loaf": "loaves",
}  # fmt: skip
