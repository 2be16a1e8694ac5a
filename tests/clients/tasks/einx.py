"""rearrange, reduce, dot, elementwise operations, indexing by names of axes."""

from tests.clients.inputs import integers, numbers

PACKAGES = "einx"


def task_functions(torch):
    import einx

    x, w = torch.tensor(numbers(2, 4, 6)), torch.tensor(numbers(6, 3, seed=1))
    return {
        "rearranged": einx.id("b (h p) c -> b h (p c)", x, p=2),
        "sum": einx.sum("b [h] c", x),
        "mean": einx.mean("b h [c]", x, keepdims=True),
        "dot": einx.dot("b h [c], [c] d -> b h d", x, w),
        "added": einx.add("b h c, c", x, w[:, 0]),
        "softmax": einx.softmax("b h [c]", x),
        "picked": einx.get_at("b [h] c, b i -> b i c", x, torch.tensor(integers(4, 2, 5))),
    }
