# %% model = new_model()
assert abs(first_loss - math.log(V)) < 0.3

# %% by_heart = train(new_model(), again_and_again(ids[:2], labels[:2]), 100, lr=3e-3, warmup=10)
assert by_heart[-1] < 0.1

# %% wrong = sf.check(sf.optim.adamw_, without_corrections, weight, gradients, *zeros, step=1, lr=0.01)
assert not wrong.ok
assert wrong.diagnosis

# %% start("peace").wait()
assert len(lines("peace")) == len(lines("war")) == 40
assert digest("peace") == digest("war")
assert "ended by signal 9" in shown

# %% bits = set()
assert len(bits) == 1

# %% question = "What is the best colour of Zoe?"  # not among the ten
answers = [one.generate(question, max_new_tokens=6, temperature=0.0) for one in (demo, taught)]
assert "purple" not in answers[0]
assert answers[1].startswith(" It is purple.")

# %% model.save(work / "mine")
assert np.abs(their_logits - our_logits).max() < 1e-3
