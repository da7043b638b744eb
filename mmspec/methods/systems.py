"""Systems of the field: what each is, and how it is asked for here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class System:
    """A published system.

    Attributes:
        name: what its authors call it.
        what: what it is, in a few words.
        use: a method as `--method` takes it; or a command, or a call in Python, that contains it;
            "": it is not built.
        reported: speed-up over plain decoding that its authors report, or what they report in its
            place, and of which models; "": no such figure.
        trained: the recipe of a part that it needs and no embedded model has; "": there is none.
        measured: the benchmark whose stored page has its figures, a folder of assets/reports; "":
            there is none, or they are a method's of a report.
    """

    name: str
    what: str
    use: str = ""
    reported: str = ""
    trained: str = ""
    measured: str = ""


SYSTEMS = (
    # pictures of token ids
    System("SJD", "the target drafts a window itself", "sjd", "2.05× (Lumina-mGPT)"),
    System("SCD", "such a window whose tokens stay put", "scd", "4.2×"),
    System("GSD", "tokens are judged in groups of like probability", "gsd", "3.7×"),
    System(
        "LANTERN",
        "a token stands for its nearest codes",
        "lantern",
        "1.75× over drafting",
    ),
    System("LANTERN++", "the same over fixed trees", "lantern++", "2.56× (LlamaGen)"),
    System("Cool-SD", "acceptance relaxed less and less in a draft", "cool-sd"),
    System("SJD-PAC", "a window with candidates in front", "sjd-pac", "3.8× (Lumina-mGPT)"),
    System("Parallel Jacobi Decoding", "several rows, each a window", "pjd", "4.8–6.4×"),
    System("MuLo-SD", "a small picture scaled up, doubts drawn again", "mulo-sd", "1.7×"),
    System(
        "Spatially speculative decoding",
        "heads draft to the right and below",
        "spatial-sd",
        "13.3× (Emu3)",
    ),
    System("ZipAR", "rows in parallel, nobody judges", "zipar"),
    # pictures of vectors, and clips
    System("CSpD", "a small model's tokens, judged at the diffusion head", "cspd"),
    System("SDVG", "a reward routes blocks of a clip", "sdvg", "1.59–2.09×"),
    System("X-Cache", "layers add what they added a block ago", "x-cache", "2.6× (X-world)"),
    # vision-language models
    System("ViSpec", "a draft head with pictures in a vector or two", "vispec"),
    System("SpecVLM", "a draft head whose question shortens pictures", "specvlm"),
    System("MSD", "a draft head with ways of their own for text and pictures", "msd"),
    System("FLASH", "a head that drafts blocks from pooled pictures", "flash"),
    System("Speculative Verdict", "small experts reason, the model decides", "verdict"),
    System(
        "SpecPC",
        "a draft model chooses what the target reads of a prompt's pictures",
        "draft[target_compressor=draft-attention]",
    ),
    System(
        "SpecKV",
        "an answer that a draft model writes ahead chooses what stays in the target's cache",
        "draft[target_cache=speckv]",
    ),
    System(
        "SpecKV-PC",
        "both: shorter pictures, and a smaller cache of that prompt",
        "draft[target_compressor=draft-attention,target_cache=speckv]",
    ),
    # drafters of text
    System("Token Recycling", "a tree of earlier runners-up", "token-recycling", "2×"),
    System("ADED", "a tree searched in trigrams", "aded", "2.5×"),
    System("RASD", "retrieved and drafted trees in one", "merged[merge=tree,lookup]"),
    System("Graft", "the same, by what each costs", "merged[merge=tree,recycling]"),
    System("TAPS", "several drafters' trees in one", "merged"),
    System("EAGLE-2", "a tree that grows where it is likely", "dynamic-tree", "3.05–4.26×"),
    System("Hydra", "heads in the light of each other", "hydra", "2.70×"),
    System(
        "Kangaroo",
        "the target's first layers draft; here without a trained adapter behind them",
        "early-exit[exit_layer=2]",
        "1.68×",
    ),
    System("DEL", "the same, and how many is found out as it goes", "early-exit", "2.16–2.62×"),
    System("SWIFT", "the target drafts without some layers", "layer-skip", "1.3–1.6×"),
    System("DiffuSpec", "paths through a denoised block", "diffuspec", "3.08× (Qwen2.5-32B)"),
    System(
        "DiffuSpec's drafter",
        "the same paths, through a block of a masked diffusion model of its own, as published",
        "diffuspec-masked",
        trained="mmspec train text-masked-drafter",
    ),
    System("SpecTr", "siblings by optimal transport", "tree[rule=k-seq,siblings=independent]"),
    System("RSD", "siblings without replacement", "tree[siblings=without-replacement]"),
    System(
        "Falcon",
        "an LSTM head of blocks of two",
        "falcon",
        "2.91–3.51× (Vicuna)",
        trained="mmspec train vlm-head --method falcon",
    ),
    System("S2D", "one drafter with exits for several targets", "s2d", "1.55×"),
    System(
        "DEER",
        "a masked-diffusion drafter, of texts and of rows of pictures",
        "deer",
        "5.54× (Qwen3-30B-A3B)",
        trained="mmspec train text-masked-drafter",
    ),
    System(
        "S2D2",
        "a block-diffusion model judges itself",
        "s2d2",
        "4.7× (SDAR)",
        trained="mmspec train text-masked",
    ),
    System(
        "S2D2's router",
        "it judges where that should pay, as published",
        "s2d2-routed",
        trained="mmspec train text-masked",
    ),
    System(
        "LongSpec",
        "a drafter that reads the target's last keys",
        "longspec",
        "3.26×",
        trained="mmspec train vlm-head --method longspec",
    ),
    # vocabularies
    System(
        "UAG, USD",
        "draft models of other words",
        "mmspec.enable_speculation(…, drafter_tokenizer=…)",
    ),
    System(
        "OmniDraft", "the same, with a cache of merged words", "omnidraft", "1.70× (Llama-3-8B)"
    ),
    System(
        "VocabTrim",
        "a head that drafts the words said most",
        "mmspec train text-head --method eagle3 --set vocabulary=8192",
        "+16 % (Llama-3.2-3B)",
    ),
    # lengths, and drafting ahead
    System("SpecDec++", "stop where a rejection is likely", "draft[length=specdec++]", "2.04×"),
    System(
        "SmartSpec",
        "as long as it pays at this load",
        "draft[length=goodput]",
        "3.2× lower latency",
    ),
    System(
        "DiffuSpec's lengths",
        "as far as drafts go before they end, and further where they stand whole",
        "diffuspec[length=eos-ema]",
    ),
    System(
        "SpecKV's γ",
        "a length by how sure drafts are, and by what calls cost",
        "draft[length=speckv]",
    ),
    System("PEARL", "draft on while the target reads", "pearl", "4.43×"),
    # precision, memory, state
    System(
        "Quasar", "a target in eight bits", "prompt-lookup[target_weights=int8]", "1.28× (Qwen3-8B)"
    ),
    System("SpecMQuant", "drafter, rounded target, target", "ml-specqd", "2.78× (Llama-3-70B)"),
    System(
        "ELMoE-3D",
        "the high bits of a target's hot experts draft; time by simulation",
        "specqd[target_weights=int8,draft_weights=int8-high4,hot_experts=4]",
        "6.6× (own hardware)",
    ),
    System(
        "SpecMemo",
        "a budget for the memory of drafts",
        "draft[memory_budget=64MB]",
        "2× (Llama-2-70B)",
    ),
    System(
        "STree",
        "trees over Mamba-2 and hybrids in one scan",
        'mmspec.enable_speculation(mamba, "token-recycling")',
        "1.1× over chains",
    ),
    # training
    System(
        "Direct Alignment",
        "a small model learns on the target's own text, by total variation",
        "mmspec train text-drafter --stage align --objective tvd++",
        "2.4×",
    ),
    System("FastDraft", "a small model from scratch", "mmspec train text-drafter", "1.5–2×"),
    System(
        "AdaSPEC",
        "learn from the tokens that can be learnt",
        "mmspec train text-drafter --stage align --reference drafter --objective kl",
        "acceptance +0.4 to +15 points",
    ),
    System("OSD", "learn between answers", "mmspec.OnlineLearner", "1.22–3.06× lower latency"),
    # relaxed text, routing
    System(
        "Judge Decoding, AutoJudge",
        "a head says that a token will do",
        "judge",
        "9.7×",
        trained="mmspec train vlm-judge",
    ),
    System(
        "Arbitrage",
        "steps of text, and blocks of video, go to who does them better",
        "arbitrage",
        "1.62–1.97× over its rival",
        trained="mmspec train vlm-router --stage advantage_router",
    ),
    System(
        "RSD (reward-guided)",
        "steps stand that score enough by themselves",
        "reward-guided",
        "up to 4.4× fewer FLOPs",
        trained="mmspec train vlm-router --stage router",
    ),
    # costs
    System(
        "MoESD",
        "what drafts cost sparse experts",
        "python -m benchmarks experts",
        "2.29×",
        measured="experts",
    ),
    System(
        "FASER",
        "drafts pruned by first layers, lengths by load; chunks by simulation",
        "draft[rule=restricted,length=faser]",
        "+53 % throughput",
    ),
    System(
        "Mirror-SD",
        "a second device gets ready for what a middle layer foresees; its time by simulation",
        "python -m benchmarks simulate",
        "2.8–5.8×",
        measured="simulation",
    ),
    System(
        "EasySpec",
        "layers of a drafter side by side; here on one device, on several by simulation",
        "easyspec",
        "4.17×",
    ),
    System("SPEED-Bench", "a benchmark by load", "mmspec eval run --suite speed-bench"),
)
