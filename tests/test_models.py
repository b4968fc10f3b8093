"""Whole models train through the backend as they do in eager.

Each model is a function `train(compile)`: it builds a model from a seed, gives to `compile` what is
to be compiled, trains for some steps and returns a `Run` with everything that came out: losses,
gradients of each step, final parameters, buffers and optimiser state. It runs twice, once with
functions left as they are and once compiled.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

import straightline

Compile = Callable[[Any], Any]
STEPS = 4


@dataclasses.dataclass
class Run:
    """What a training run leaves behind."""

    losses: list[Tensor] = dataclasses.field(default_factory=list)
    gradients: list[dict[str, Tensor | None]] = dataclasses.field(default_factory=list)
    state: dict[str, Any] = dataclasses.field(default_factory=dict)

    def step(self, loss: Tensor, *modules: nn.Module) -> None:
        """Note a loss and the gradients that it left in the modules."""
        self.losses.append(loss.detach().clone())
        self.gradients.append(
            {
                f"{place}.{name}": None if p.grad is None else p.grad.clone()
                for place, module in enumerate(modules)
                for name, p in module.named_parameters()
            }
        )

    def finish(self, *modules: nn.Module, optimisers: Iterable[torch.optim.Optimizer] = ()) -> Run:
        """Note the final state."""
        self.state = {
            "modules": [dict(m.state_dict()) for m in modules],
            "optimisers": [o.state_dict()["state"] for o in optimisers],
            "random": torch.get_rng_state(),
        }
        return self


def leaves(tree: Any, at: str) -> dict[str, Any]:
    """Everything in nested containers by its path."""
    match tree:
        case Mapping():
            items: Iterable[tuple[Any, Any]] = tree.items()
        case list() | tuple():
            items = enumerate(tree)
        case _:
            return {at: tree}
    return {k: v for key, value in items for k, v in leaves(value, f"{at}[{key}]").items()}


def trains_as_eager(
    train: Callable[[Compile], Run],
    *,
    graphs: int,
    compile: Callable[..., Any] | None = None,
    tolerance: float = 1e-5,
    **options: Any,
) -> None:
    """Train eagerly and compiled; compare all of it, and count what was compiled.

    `graphs`: how many graphs Dynamo is to capture, without one break. `options` go to `compile`,
    by default `torch.compile` with our backend. `tolerance` is absolute; the relative one is
    ten times that.
    """
    torch.manual_seed(7)
    want = train(lambda f: f)
    torch._dynamo.reset()
    counters.clear()
    made: list[Any] = []
    compiler = compile or (lambda f, **o: torch.compile(f, backend="straightline", **o))

    def keep(f: Any) -> Any:
        made.append(compiler(f, **options))
        return made[-1]

    torch.manual_seed(7)
    got = train(keep)

    assert counters["graph_break"] == {}
    assert counters["stats"]["unique_graphs"] == graphs
    assert counters["aot_autograd"]["ok"] == graphs
    assert sum(straightline.source(c).count("# straightline | ") for c in made) >= graphs

    assert len(want.losses) == len(want.gradients) > 1
    assert not torch.equal(want.losses[0], want.losses[-1]), "the model does not train"
    for part in ("losses", "gradients", "state"):
        theirs, ours = leaves(getattr(want, part), part), leaves(getattr(got, part), part)
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            if isinstance(value, Tensor):
                torch.testing.assert_close(
                    ours[name],
                    value,
                    rtol=10 * tolerance,
                    atol=tolerance,
                    check_stride=True,
                    msg=functools.partial("{}: {}".format, name),
                )
            else:
                assert ours[name] == value, name


def has_forward_and_backward(source: str) -> bool:
    return "| forward |" in source and "| backward |" in source


# --- a convolutional network ------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.down = (
            nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
            if stride != 1 or inner != outer
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.down is None else self.down(x)
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += identity
        return F.relu(out, inplace=True)


class ResNet(nn.Module):
    """ResNet-18 with `width` in place of 64 channels.

    In double precision: with so few samples each step makes a difference of rounding a thousand
    times larger, in eager too.
    """

    def __init__(self, width: int, classes: int = 10, blocks: int = 2) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1)
        layers: list[nn.Module] = []
        inner = width
        for number in range(4):
            for block in range(blocks):
                stride = 2 if number and not block else 1
                layers.append(Residual(inner, width << number, stride))
                inner = width << number
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(inner, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.layers(x)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def train_resnet(
    compile: Compile,
    width: int = 8,
    size: int = 32,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Run:
    model = ResNet(width).double()
    model.to(memory_format=memory_format)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    net, run = compile(model), Run()
    x = torch.randn(4, 3, size, size).double().to(memory_format=memory_format)
    y = torch.randint(0, 10, (4,))
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
        loss.backward()
        run.step(loss, model)
        optimiser.step()
        scheduler.step()
    return run.finish(model, optimisers=[optimiser])


def test_resnet() -> None:
    trains_as_eager(train_resnet, graphs=1, fullgraph=True)


def test_resnet_channels_last() -> None:
    trains_as_eager(
        lambda c: train_resnet(c, memory_format=torch.channels_last), graphs=1, fullgraph=True
    )


def test_resnet_through_our_own_entry() -> None:
    seen: list[str] = []

    def train(compile: Compile) -> Run:
        compiled: list[Any] = []
        run = train_resnet(lambda m: compiled.append(compile(m)) or compiled[-1])
        if hasattr(compiled[0], "source"):
            seen.append(compiled[0].source)
        return run

    trains_as_eager(train, graphs=1, compile=straightline.compile, fullgraph=True)
    assert has_forward_and_backward(seen[0])


@pytest.mark.slow
def test_resnet_at_full_width() -> None:
    trains_as_eager(lambda c: train_resnet(c, width=64, size=64), graphs=1, fullgraph=True)


def test_resnet_in_training_and_evaluation() -> None:
    """Switching to evaluation and back compiles one more graph and moves no running statistics."""

    def train(compile: Compile) -> Run:
        model = ResNet(4, blocks=1).double()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        net, run = compile(model), Run()
        x, y = torch.randn(4, 3, 32, 32).double(), torch.randint(0, 10, (4,))
        for _ in range(3):
            model.train()
            optimiser.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimiser.step()
            run.step(loss, model)
            model.eval()
            with torch.no_grad():
                run.losses.append(net(x))
                run.gradients.append({})
        return run.finish(model)

    trains_as_eager(train, graphs=2, fullgraph=True)


# --- transformers -----------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (
            t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for t in (q, k, v)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        return F.dropout(self.out(y), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(
        self,
        vocabulary: int = 50,
        width: int = 32,
        heads: int = 4,
        depth: int = 2,
        length: int = 16,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight  # tied

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        where = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(where))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def decayed(model: nn.Module) -> list[dict[str, Any]]:
    """Weight decay on matrices only, as GPTs are trained."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]


def train_gpt(compile: Compile, lengths: Iterable[int] = (16,) * STEPS, **sizes: Any) -> Run:
    model = GPT(**sizes)
    # Adam divides by the size of gradients, of which attention's key biases have none but noise.
    optimiser = torch.optim.AdamW(decayed(model), lr=1e-2, betas=(0.9, 0.95), eps=1e-4)
    net, run = compile(model), Run()
    vocabulary = model.tokens.num_embeddings
    for length in lengths:
        tokens = torch.randint(0, vocabulary, (3, length + 1))
        targets = tokens[:, 1:].clone()
        targets[0, -2:] = -1
        optimiser.zero_grad(set_to_none=False)
        _, loss = net(tokens[:, :-1], targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        run.step(loss, model)
        optimiser.step()
    return run.finish(model, optimisers=[optimiser])


def test_gpt() -> None:
    trains_as_eager(train_gpt, graphs=1, fullgraph=True)


def test_gpt_with_lengths_that_vary() -> None:
    """The second length compiles anew with a symbol for it, the others run that program."""
    trains_as_eager(lambda c: train_gpt(c, lengths=(16, 12, 9, 14, 16)), graphs=2, fullgraph=True)


@pytest.mark.slow
def test_gpt_of_some_size() -> None:
    trains_as_eager(
        lambda c: train_gpt(c, lengths=(64,) * 6, vocabulary=1000, width=128, depth=6, length=64),
        graphs=1,
        fullgraph=True,
    )


def test_gpt_under_autocast() -> None:
    def train(compile: Compile) -> Run:
        model = GPT()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        net, run = compile(model), Run()
        tokens = torch.randint(0, 50, (3, 17))
        for _ in range(STEPS):
            optimiser.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                _, loss = net(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            run.step(loss, model)
            optimiser.step()
        return run.finish(model)

    # bfloat16 has 8 bits, and a cast that is traced once is not the cast that eager caches.
    trains_as_eager(train, graphs=1, tolerance=1e-2, fullgraph=True)


def test_gpt_accumulates_gradients() -> None:
    """Several backwards into the same `.grad`, one step."""

    def train(compile: Compile) -> Run:
        model = GPT()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        net, run = compile(model), Run()
        for _ in range(2):
            optimiser.zero_grad()
            for _ in range(3):
                tokens = torch.randint(0, 50, (2, 17))
                _, loss = net(tokens[:, :-1], tokens[:, 1:])
                (loss / 3).backward()
                run.step(loss, model)
            optimiser.step()
        return run.finish(model)

    trains_as_eager(train, graphs=1, fullgraph=True)


def train_bert(compile: Compile, attention: str) -> Run:
    import transformers  # late: slow to load

    config = transformers.BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        attn_implementation=attention,  # type: ignore[call-arg]
    )
    model = transformers.BertForMaskedLM(config).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3, eps=1e-4)
    net, run = compile(model), Run()
    for _ in range(STEPS):
        tokens = torch.randint(5, 60, (3, 12))
        mask = torch.ones(3, 12, dtype=torch.long)
        mask[0, 9:] = 0
        labels = torch.where(torch.rand(3, 12) < 0.3, tokens, -100)
        labels[:, 0] = tokens[:, 0]
        optimiser.zero_grad()
        out = net(input_ids=tokens, attention_mask=mask, labels=labels)
        out.loss.backward()
        run.step(out.loss, model)
        optimiser.step()
    return run.finish(model, optimisers=[optimiser])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_hugging_face_bert(attention: str) -> None:
    trains_as_eager(lambda c: train_bert(c, attention), graphs=1, fullgraph=True)


# --- recurrent networks -----------------------------------------------------------------------


class Tagger(nn.Module):
    """Embeds, runs a two-layer LSTM both ways, and tags.

    Dropout stands outside of it: torch decomposes an LSTM when it traces, and the masks between the
    layers come out in another order of memory than eager's, for every backend.
    """

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.recurrent = kind(8, 6, 2, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.2)
        self.out = nn.Linear(12, 5)

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        hidden, state = self.recurrent(self.dropout(self.embed(tokens)), state)
        return self.out(self.dropout(hidden)), state


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> None:
    """Truncated backpropagation through time: the state travels from step to step, detached."""

    def train(compile: Compile) -> Run:
        model = Tagger(kind)
        optimiser = torch.optim.RMSprop(model.parameters(), lr=1e-2, momentum=0.5, eps=1e-4)
        net, run = compile(model), Run()
        layers, width = 4, 6
        state: Any = torch.zeros(layers, 3, width)
        state = (state, torch.zeros(layers, 3, width)) if kind is nn.LSTM else state
        for _ in range(STEPS):
            tokens, tags = torch.randint(0, 20, (3, 7)), torch.randint(0, 5, (3, 7))
            optimiser.zero_grad()
            out, state = net(tokens, state)
            loss = F.cross_entropy(out.flatten(0, 1), tags.flatten())
            loss.backward()
            state = tuple(s.detach() for s in state) if kind is nn.LSTM else state.detach()
            run.step(loss, model)
            optimiser.step()
        return run.finish(model)

    with torch._dynamo.config.patch(allow_rnn=True):
        trains_as_eager(train, graphs=1, fullgraph=True)


class OwnLSTM(nn.Module):
    """An LSTM written out step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 8)
        c = torch.zeros_like(h)
        steps = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            steps.append(self.out(h))
        return torch.stack(steps, 1).squeeze(-1)


def test_unrolled_lstm() -> None:
    def train(compile: Compile) -> Run:
        model = OwnLSTM()
        optimiser = torch.optim.Adagrad(model.parameters(), lr=0.05)
        net, run = compile(model), Run()
        x = torch.randn(5, 6, 4)
        y = x.cumsum(1).sum(-1).tanh()
        for _ in range(STEPS):
            optimiser.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            run.step(loss, model)
            optimiser.step()
        return run.finish(model, optimisers=[optimiser])

    trains_as_eager(train, graphs=1, fullgraph=True)


# --- generative models ------------------------------------------------------------------------


def generator() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 4 * 16),
        nn.Unflatten(1, (4, 4, 4)),
        nn.BatchNorm2d(4),
        nn.ReLU(True),
        nn.ConvTranspose2d(4, 4, 4, 2, 1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(True),
        nn.ConvTranspose2d(4, 1, 4, 2, 1),
        nn.Tanh(),
    )


def discriminator() -> nn.Module:
    return nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 4, 4, 2, 1)),
        nn.LeakyReLU(0.2, True),
        nn.Dropout2d(0.2),
        nn.Conv2d(4, 8, 4, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.LeakyReLU(0.2, True),
        nn.Flatten(),
        nn.Linear(8 * 16, 1),
    )


def test_gan() -> None:
    """Two networks, two optimisers; the generator's loss flows back through the discriminator."""

    def train(compile: Compile) -> Run:
        g, d = generator(), discriminator()
        of_g = torch.optim.Adam(g.parameters(), lr=2e-3, betas=(0.5, 0.999), eps=1e-4)
        of_d = torch.optim.Adam(d.parameters(), lr=2e-3, betas=(0.5, 0.999), eps=1e-4)

        def loss_of_d(real: Tensor, noise: Tensor) -> Tensor:
            fake = g(noise).detach()
            right, wrong = d(real), d(fake)
            return F.binary_cross_entropy_with_logits(
                right, torch.ones_like(right)
            ) + F.binary_cross_entropy_with_logits(wrong, torch.zeros_like(wrong))

        def loss_of_g(noise: Tensor) -> Tensor:
            judged = d(g(noise))
            return F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged))

        run_d, run_g, run = compile(loss_of_d), compile(loss_of_g), Run()
        for _ in range(STEPS):
            real = torch.rand(4, 1, 16, 16) * 2 - 1
            of_d.zero_grad()
            loss = run_d(real, torch.randn(4, 8))
            loss.backward()
            run.step(loss, g, d)
            of_d.step()
            of_g.zero_grad()
            loss = run_g(torch.randn(4, 8))
            loss.backward()
            run.step(loss, g, d)
            of_g.step()
        return run.finish(g, d, optimisers=[of_g, of_d])

    trains_as_eager(train, graphs=2, fullgraph=True)


class TimeBlock(nn.Module):
    def __init__(self, inner: int, outer: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, inner), nn.GroupNorm(2, outer)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(time, outer)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        h = self.conv2(F.dropout(F.silu(self.norm2(h)), 0.1, self.training))
        return h + self.skip(x)


class SpatialAttention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)
        self.attention = nn.MultiheadAttention(channels, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(x).flatten(2).transpose(1, 2)
        out, _ = self.attention(rows, rows, rows, need_weights=False)
        return x + out.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    def __init__(self, width: int = 8, time: int = 16) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.down1 = TimeBlock(width, width, time)
        self.down2 = TimeBlock(width, 2 * width, time)
        self.middle = TimeBlock(2 * width, 2 * width, time)
        self.attention = SpatialAttention(2 * width)
        self.up2 = TimeBlock(4 * width, width, time)
        self.up1 = TimeBlock(2 * width, width, time)
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        half = self.width // 2
        frequencies = torch.exp(-torch.arange(half) * (4.0 / half))
        angles = t[:, None] * frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x = self.first(x)
        a = self.down1(x, time)
        b = self.down2(F.avg_pool2d(a, 2), time)
        m = self.attention(self.middle(b, time))
        u = self.up2(torch.cat([m, b], 1), time)
        u = F.interpolate(u, scale_factor=2, mode="nearest")
        return self.last(self.up1(torch.cat([u, a], 1), time))


def test_diffusion() -> None:
    """Noise and times are drawn inside the compiled step; weights are averaged beside."""

    def train(compile: Compile) -> Run:
        model = UNet()
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, eps=1e-4)
        kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)

        def loss_of(images: Tensor) -> Tensor:
            t = torch.randint(0, 100, (images.shape[0],))
            noise = torch.randn_like(images)
            alpha = kept[t].view(-1, 1, 1, 1)
            noisy = alpha.sqrt() * images + (1 - alpha).sqrt() * noise
            return F.mse_loss(model(noisy, t.float()), noise)

        step, run = compile(loss_of), Run()
        for _ in range(STEPS):
            optimiser.zero_grad()
            loss = step(torch.rand(3, 1, 16, 16))
            loss.backward()
            run.step(loss, model)
            optimiser.step()
            average.update_parameters(model)
        return run.finish(model, average)

    trains_as_eager(train, graphs=1, fullgraph=True)


# --- optimiser steps --------------------------------------------------------------------------

OPTIMISERS: Mapping[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW one by one": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "AdamW, lr a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), capturable=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimiser_step(name: str) -> None:
    """The step is compiled, forward and backward are eager; parameters are written in place."""

    def train(compile: Compile) -> Run:
        model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
        optimiser = OPTIMISERS[name](model.parameters())
        places = [p.data_ptr() for p in model.parameters()]

        def step() -> None:
            optimiser.step()

        take, run = compile(step), Run()
        x, y = torch.randn(10, 6), torch.randint(0, 3, (10,))
        for _ in range(STEPS):
            optimiser.zero_grad(set_to_none=False)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            run.step(loss, model)
            take()
        assert [p.data_ptr() for p in model.parameters()] == places
        return run.finish(model, optimisers=[optimiser])

    torch.manual_seed(7)
    want = train(lambda f: f)
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(7)
    got = train(lambda f: torch.compile(f, backend="straightline"))
    # How often Dynamo compiles a step anew is its own affair; that it compiled it at all is not.
    assert counters["stats"]["unique_graphs"] >= 1
    assert counters["aot_autograd"]["ok"] == counters["stats"]["unique_graphs"]
    for part in ("losses", "gradients", "state"):
        torch.testing.assert_close(
            leaves(getattr(got, part), part), leaves(getattr(want, part), part), check_stride=True
        )
