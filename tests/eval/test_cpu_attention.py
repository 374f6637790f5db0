"""The CPU's attention against torch's own kernel, and beginnings that are read once for a batch."""

import pytest
import torch

from eval.chat_models import load_chat_models
from eval.chat_models.base import Request, Sampling
from eval.chat_models.cpu_attention import MOST_QUERIES, NAME, cpu_attention


@pytest.mark.parametrize("count", [1, 5, MOST_QUERIES, MOST_QUERIES + 1])
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("boolean", [True, False])
def test_the_products_are_torchs_attention(count, groups, boolean):
    torch.manual_seed(0)
    query = torch.randn(3, 8, count, 16)
    key, value = torch.randn(2, 3, groups, 40, 16)
    seen = torch.rand(3, 1, count, 40) > 0.3
    seen[..., 0] = True
    mask = seen if boolean else torch.zeros(3, 1, count, 40).masked_fill(~seen, torch.finfo(torch.float).min)
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = 8 // groups, False
    found, _ = cpu_attention(module, query, key, value, mask, scaling=0.3)
    wide = (states.repeat_interleave(8 // groups, dim=1) for states in (key, value))
    expected = torch.nn.functional.scaled_dot_product_attention(query, *wide, attn_mask=mask, scale=0.3)
    assert torch.allclose(found, expected.transpose(1, 2), atol=1e-5)


def test_a_query_that_sees_nothing_stays_finite():
    query, key = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 6, 4)
    found, _ = cpu_attention(torch.nn.Module(), query, key, key, torch.zeros(1, 1, 1, 6, dtype=torch.bool))
    assert found.isfinite().all()


def requests(count, start=0):
    system = {"role": "system", "content": "You are talking with a person who is going through a hard time. " * 3}
    return [
        Request(f"c{n}", [system, {"role": "user", "content": f"number {n} is sad {'so ' * (n % 3)}"}], n)
        for n in range(start, start + count)
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_shared_beginning_is_read_once_and_changes_nothing(tiny_model, temperature):
    sampling = Sampling(max_new_tokens=12, temperature=temperature, top_p=0.95)
    [together], [alone] = load_chat_models([str(tiny_model)]), load_chat_models([str(tiny_model)])
    assert together._weights.model.config._attn_implementation == NAME
    found = together.reply(requests(6), sampling)
    single = [alone.reply([one], sampling)[0] for one in requests(6)]
    assert [one.text for one in found] == [one.text for one in single]
    lengths = [reply.prompt_tokens for reply in found]
    assert together.stats.prompt_read < sum(lengths) - 4 * 30, "the system prompt of all but one was not read again"
    assert together.stats.prompt_read + together.stats.prompt_reused == sum(lengths)
    # A later batch, and a later conversation alone, use it, too; after `forget` it is gone.
    before = together.stats.prompt_read
    later = together.reply(requests(1, 40), sampling)
    assert together.stats.prompt_read - before < later[0].prompt_tokens - 30
    assert later[0].text == alone.reply(requests(1, 40), sampling)[0].text
    together.forget()
    assert together._alike is None
