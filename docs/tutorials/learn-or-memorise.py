# needs: cifar10.npz
# %% [markdown]
# # A CIFAR ResNet that learns and one that memorises
#
# Two networks of the same architecture fit 1,000 images of CIFAR-10, automobiles and frogs. One has the true labels, the other has random labels. Training
# accuracy is the same. A survey says which is which, and in which layers they differ.
#
# The data are CIFAR-10. `theodolite_papers.lab.data.download_image_set("cifar10")` downloads them once into the folder that the variable `THEODOLITE_DATA`
# names. On two cores this page takes about three minutes.

# %%
import torch
from torch import nn
from torch.nn import functional

import theodolite as th
from theodolite_papers.lab.data import load_image_set

cifar = load_image_set("cifar10")
AUTOMOBILE, FROG = 1, 6


def part(images, labels, count):
    rows = ((labels == AUTOMOBILE) | (labels == FROG)).nonzero()[:count, 0]
    small = functional.avg_pool2d(images[rows].float() / 255 - 0.47, 2) / 0.25  # 16 x 16 pixels
    return small, (labels[rows] == FROG).long()


x, y = part(cifar.x_train, cifar.y_train, 1_000)
x_test, y_test = part(cifar.x_test, cifar.y_test, 500)
random = torch.randint(2, y.shape, generator=torch.Generator().manual_seed(2))

# %% [markdown]
# ## Two networks
#
# Both networks have five residual blocks. We train with 20 passes over the data for the true labels and with 40 for random labels.


# %%
class Block(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = (
            nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()
        )

    def forward(self, x):
        inner = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(inner)) + self.shortcut(x)).relu()


def trained(labels, passes):
    torch.manual_seed(0)
    blocks = [Block(16, 16), Block(16, 32, 2), Block(32, 32), Block(32, 64, 2), Block(64, 64)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 2)]
    model = nn.Sequential(*stem, *blocks, *head)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(passes):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[rows]), labels[rows]).backward()
            optimizer.step()
    return model.eval()


learned, memorised = trained(y, 20), trained(random, 40)


@torch.no_grad()
def accuracy(model, images, labels):
    return float((model(images).argmax(1) == labels).float().mean())


print(f"true labels:   {accuracy(learned, x, y):.0%} of the training examples")
print(f"random labels: {accuracy(memorised, x, random):.0%} of the training examples")

# %% [markdown]
# ## What a survey says
#
# `held_out=` decides: it measures how much of the fit carries over to examples that the network has not seen.

# %%
surveys = {}
for name, model, labels in (("true labels", learned, y), ("random labels", memorised, random)):
    surveys[name] = th.survey(
        model,
        (x, labels),
        held_out=(x_test, y_test),
        families=["representation", "kernel"],
        seconds=None,  # all examples, however long it takes
        name=name,
    )
    print(name)
    for answer in surveys[name].answers:
        print(f"  {answer.text} [{answer.certainty}]")

# %% [markdown]
# ## Where the difference lies
#
# With true labels CKA to labels is above chance from the first layer on, and it is highest in the output layer. With random labels it stays at chance until
# the last two blocks, which memorise.

# %% alt="CKA to labels over depth: with true labels it rises from the first layer on, with random labels in the last blocks only"
comparison = th.compare(*surveys.values())
comparison.plot("cka_target")

# %% [markdown]
# CKA to labels uses training examples. Linear probes are judged on held-out examples. With true labels they are accurate in every layer. With random labels
# they are no better than chance. Some are far below it: by accident, a probe fitted to random labels may disagree with the true classes. All layers share
# these labels, so the accident is the same.

# %% alt="Accuracy of linear probes on held-out examples, over the depth of both networks"
comparison.plot("probe_accuracy")

# %% [markdown]
# ## What to take away
#
# - Training accuracy cannot separate these networks. Held-out examples can.
# - The last layers of the second network align with its random labels, because training fitted them. The first layers do not. This comparison describes two
#   networks on one task. It is no test for memorising: without held-out examples Theodolite never says "memorised".
# - `comparison.to_html("comparison.html")` writes the page with every measure.
