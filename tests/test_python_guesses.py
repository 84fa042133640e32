"""What people type who have read no documentation: it works, or it is answered by the name that does."""

import json
import re
import sys

import numpy as np
import pytest

import crossflow
from crossflow.answers.catalogue.examples import example
from crossflow.base.errors import CrossflowError

LLAMA = str(example("llama"))
SERVICE = {"model": "llama3-8b", "on": "dgx-h100", "task": "decode", "batch": 32, "prompt": 2000, "output": 300, "tp": 8}
SMALL = {"model": "llama3-8b", "on": "dgx-h100", "batch": 64, "sequence": 4096}


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What expressions below are about."""
    scenario = crossflow.load(LLAMA)
    small = crossflow.load(**SMALL, strategy="tp4-dp2")
    return {
        "crossflow": crossflow, "path": LLAMA, "scenario": scenario, "p": crossflow.predict(scenario), "small": small,
        "service": crossflow.predict(**SERVICE), "plans": crossflow.plan(small), "score": crossflow.sweep(small, batch=[32, 64, 128]),
        "step": crossflow.timeline(small), "e": crossflow.explain(small), "out": tmp_path_factory.mktemp("out"), "np": np,
        "study": crossflow.study({"name": "s", "scenario": small.to_dict(), "sweep": {"workload.global_batch": [32, 64]}},
                                 out=tmp_path_factory.mktemp("study")),
    }  # fmt: skip


# Expressions, and what is true of their value `it`.
WORKS = [
    ("crossflow.__version__", "it[0].isdigit()"),
    # asking
    ("crossflow.predict(path)", "it.feasible"),
    ("crossflow.predict(scenario)", "it.step_time == p.step_time"),
    ("crossflow.predict(path, nodes=32, strategy='tp8-dp32')", "it.devices == 256"),
    ("crossflow.predict(path, {'system.nodes': 32, 'strategy': 'auto'})", "it.devices == 256"),
    ("crossflow.predict(path, batch=128)", "it.scenario.workload_batch == 128"),
    ("crossflow.predict(path, sequence=4096)", "it.step_time < p.step_time"),
    ("crossflow.predict(model='llama3-70b', system='dgx-h100', nodes=4, strategy='tp8-dp4')", "it.devices == 32"),
    ("crossflow.predict(model='llama3-8b', on='dgx-h100', tp=8)", "it.strategy == 'tp8'"),
    ("crossflow.predict('llama3-8b', on='dgx-h100', strategy='tp8')", "it.strategy == 'tp8'"),
    ("crossflow.predict(model='llama3-8b', on='dgx-h100', strategy='tp8').assumptions", "'batch= changes it' in it[-1]"),
    ("crossflow.predict(model='llama3-8b', on='dgx-h100', task='prefill', batch=8, prompt=512)", "it.feasible"),
    ("crossflow.load(path)", "it.devices == 128"),
    ("crossflow.sweep('llama3-8b', on='dgx-h100', batch=64, nodes=[1, 2])", "it.points['strategy'] == ('dp8-z3', 'dp16-z3')"),
    ("crossflow.compare('llama3-8b', on=['dgx-h100', 'dgx-a100'], devices=8, batch=16, sequence=2048)", "len(it.rows) == 2"),
    ("crossflow.load(path, nodes=32, strategy='tp8-dp32').devices", "it == 256"),
    ("crossflow.load(model='llama3-8b', on='dgx-h100', tp=8).devices", "it == 8"),
    # a prediction
    ("p.step_time", "it > 0"), ("p.step_time_s", "it == p.step_time"), ("p['step_time_s']", "it == p.step_time"),
    ("p.feasible", "it is True"), ("p.reason", "it is None"), ("p.strategy", "it.startswith('tp8')"), ("p.devices", "it == 128"),
    ("p.mfu", "0.3 < it < 0.6"), ("p.hfu", "it >= p.mfu"),
    ("p.tokens_per_second", "it == p.samples_per_second * 8192"), ("p.samples_per_second", "it == 256 / p.step_time"),
    ("p.throughput['tokens_per_s']", "it == p.tokens_per_second"), ("p.throughput.tokens_per_s", "it == p.tokens_per_second"),
    ("p.breakdown['compute']", "it > 0"), ("p.breakdown.compute", "it == p['breakdown_s.compute']"),
    ("p.breakdown.total", "np.isclose(it, p.step_time)"), ("sum(p.breakdown.values())", "np.isclose(it, p.step_time)"),
    ("dict(p.breakdown)", "set(it) == set(p.to_dict()['breakdown_s'])"), ("p.breakdown.bubble", "it > 0"),
    ("p.communication", "it.total > p.exposed_communication.total > 0"), ("p.exposed_communication", "it.unit == 's'"),
    ("p.memory.fits", "it is True"), ("p.memory.total", "it == p.to_dict()['memory']['total_bytes']"),
    ("p.memory.capacity", "it == 80 * 2**30"),
    ("p.memory['weights']", "it > 0"), ("p.memory.weights", "it == p['memory_bytes.weights']"),
    ("p.memory.left", "np.isclose(it, 1 - p.memory.total / p.memory.capacity)"),
    ("p.energy", "np.isclose(it, p.power * p.step_time)"), ("p.power", "it > 0"), ("p.energy_j", "it == p.energy"),
    ("p.cost", "dict(it) == {}"), ("p.usd_per_million_tokens", "it is None"),
    ("crossflow.predict(path, system__operation__price='2 USD/hour').usd_per_million_tokens",
     "np.isclose(it, 128 * 2 / 3600 / p.tokens_per_second * 1e6)"),
    ("service.ttft", "it > service.tpot > 0"), ("service.tpot", "it == service['tpot_s'] == service.serving['tpot_s']"),
    ("p.ttft", "it is None"),
    ("p.trust.level", "it in ('measured', 'interpolated', 'extrapolated', 'unknown')"), ("p.error_band.median", "0 < it < 1"),
    ("p.to_json()", "json.loads(it) == p.to_dict()"), ("p.save(out / 'p.json')", "json.loads(it.read_text()) == p.to_dict()"),
    ("p.to_csv()", "it.splitlines()[0].startswith('step_time_s,')"), ("p.table()['mfu']", "it[0] == p.mfu"),
    ("p.scenario.replace(nodes=32, strategy='auto')", "it.devices == 256"),
    ("repr(p)", "len(it) < 200"), ("p.bound_by()[0][0]", "it == 'compute'"),
    # a scenario
    ("scenario.replace({'system.nodes': 32, 'strategy': 'auto'}).devices", "it == 256"), ("small.predict().step_time", "it > 0"),
    ("small.plan().best.strategy", "it == plans.best.strategy"), ("scenario.to_yaml()", "'llama3-70b' in it"),
    ("scenario.save(out / 's.yaml')", "crossflow.load(it).strategy_text == scenario.strategy_text"),
    # plans
    ("plans.best", "it is plans.chosen"), ("plans[0]", "it.rank == 1"),
    ("len(plans)", "it == 10"), ("[one.strategy for one in plans]", "len(it) == 10"),
    ("plans[:3]", "len(it) == 3"), ("plans.best.step_time", "it > 0"), ("plans.best.tokens_per_second", "it > 0"),
    ("plans.best.memory['weights']", "it > 0"), ("plans.best.predict().step_time", "np.isclose(it, plans.best.step_time)"),
    ("plans.best.scenario.strategy_text", "it == plans.best.strategy"),
    ("plans.best.export('megatron')", "'--tensor-model-parallel-size' in it"),
    ("plans.to_csv()", "it.count('\\n') == 11"), ("plans.table()['memory.total_bytes']", "len(it) == 10"),
    ("plans.to_json()", "json.loads(it)['plans'][0]['strategy'] == plans[0].strategy"),
    ("plans.best.to_json()", "json.loads(it)['rank'] == 1"),
    ("crossflow.plan(model='llama3-8b', on='dgx-h100', batch=64, sequence=4096).best.strategy", "it == plans.best.strategy"),
    ("plans._repr_html_()", "plans.best.strategy in it"), ("repr(plans.best)", "len(it) < 100"),
    # sweeps
    ("score.step_time_s", "(it == score.step_time).all()"), ("score['mfu']", "(it == score.mfu).all()"),
    ("score['workload.global_batch']", "list(it) == [32, 64, 128]"), ("score.best.points", "it == {'workload.global_batch': (32,)}"),
    ("score[1:]", "len(it) == 2"), ("score[-1].points", "it == {'workload.global_batch': (128,)}"),
    ("score[score.step_time < 0]", "len(it) == 0"),
    ("[len(one) for one in score]", "it == [1, 1, 1]"),
    ("score.to_csv(out / 'score.csv')", "(out / 'score.csv').read_text().count('\\n') == 4"),
    ("json.loads(score.to_json())", "len(it['step_time_s']) == 3"), ("crossflow.sweep(path, batch=[256, 512])", "len(it) == 2"),
    ("crossflow.sweep(small, strategy=['tp8', 'tp4-dp2'])", "len(it) == 2"),
    # explanations, timelines
    ("crossflow.explain(small).limiting.gain", "it > 0"), ("e.table()['path']", "len(it) == len(e.effects)"), ("repr(e)", "len(it) < 200"),
    ("json.loads(e.to_json())['objective']", "it == 'step_time_s'"),
    ("step.to_perfetto(out / 'x.json.gz')", "it.stat().st_size > 100"), ("step.save(out / 'x.json')", "it[0].is_file()"),
    ("step.step_time", "np.isclose(it, small.predict().step_time)"), ("step.table()['device']", "len(it) == len(step.devices)"),
    ("repr(step)", "len(it) < 200"), ("step._repr_html_()", "len(it) < 20_000"), ("small.timeline().total", "it == step.total"),
    # studies and searches
    ("study.best['workload.global_batch']", "it == 32"), ("len(study)", "it == 2"), ("study.rows", "len(it) == 2"),
    ("crossflow.search(small, {'strategy': ['tp8', 'tp4-dp2']}).best['strategy']", "it in ('tp8', 'tp4-dp2')"),
    # names
    ("crossflow.systems()['dgx-h100']", "it"), ("crossflow.models()['llama3-70b']", "it == 'Llama 3 70B'"),
    ("crossflow.show('h100-sxm')", "it.name"),
    # the second round of guesses
    ("crossflow.predict('llama3-8b', 'dgx-h100', tp=8, batch=8).strategy", "it == 'tp8'"),
    ("p.bottleneck", "it == p.bound_by()[0][0]"), ("p.summary()", "it.startswith('Scenario(') and 'MFU' in it"),
    ("dict(p)['step_time_s']", "it == p.step_time"), ("p.get('nothing', 3)", "it == 3"), ("p.get('mfu')", "it == p.mfu"),
    ("service.e2el", "it == service['e2el_s']"), ("service.requests_per_second", "it > 0"), ("p.requests_per_second", "it is None"),
    ("p.tokens_per_second_per_device", "np.isclose(it * p.devices, p.tokens_per_second)"),
    ("p.memory.free", "it == p.memory.capacity - p.memory.total"),
    ("p.export('megatron')", "it == scenario.export() == crossflow.export(path, 'megatron')"),
    ("small.model, small.batch", "it == ('llama3-8b', 64)"), ("small.sweep(batch=[64, 128])", "len(it) == 2"),
    ("crossflow.predict(small, price=2).usd_per_million_tokens",
     "it == crossflow.predict(small, price='2 USD/hour').usd_per_million_tokens"),
    ("plans.best.memory.total", "it == plans.best.needed"),
    ("plans.plot().save(out / 'p.png')", "it[0].is_file()"),
    ("crossflow.Scenario.load(path)", "it.devices == scenario.devices"),
    ("crossflow.Scenario.from_dict(small.to_dict()).batch", "it == 64"),
    ("crossflow.optimize", "it is crossflow.optimise"),
    ("crossflow.study({'scenario': small, 'sweep': {'workload.global_batch': [32]}, 'name': 'z'}, out=out / 'z').rows", "len(it) == 1"),
    ("crossflow.compare('llama3-8b', ['dgx-h100', 'dgx-a100'], devices=8, batch=64).best.step_time", "it > 0"),
    # the third round of guesses: names of frameworks, degrees that leave devices over, short names in sweeps and plots
    ("crossflow.predict(small, global_batch_size=128, seq_len=2048).scenario.batch", "it == 128"),
    ("crossflow.predict('llama3-8b', 'dgx-h100', num_nodes=2, precision='fp8', tensor_parallel_size=8).strategy", "it == 'tp8-dp2'"),
    ("crossflow.predict(path, tp=8, pp=2).strategy", "it == 'tp8-dp8-pp2-v5-z1-sp'"),
    ("crossflow.predict(path, system='dgx-h100').devices", "it == 128"),
    ("crossflow.predict(small, {'batch': 128}).scenario.batch", "it == 128"),
    ("crossflow.predict('llama3-8b', 'dgx-h100', tp=8, sp=True, recompute=True, batch=8).strategy", "it == 'tp8-sp-full'"),
    ("crossflow.serve('llama3-8b', 'dgx-h100', requests={'arrivals': {'law': 'poisson', 'rate': '2 1/s'}, 'count': 5, 'prompt': 9, "
     "'output': 3})", "len(it.trace) == 5"),
    ("crossflow.sweep(small, system=['dgx-h100', 'dgx-h200']).points", "it == {'system.template': ('dgx-h100', 'dgx-h200')}"),
    ("crossflow.compare('llama3-8b', ['dgx-h100', 'dgx-a100'], num_gpus=8, global_batch_size=16).best.devices", "it == 8"),
    ("crossflow.predict(path, tp=np.int32(8), pp=np.int64(2)).strategy", "it == 'tp8-dp8-pp2-v5-z1-sp'"),
    ("crossflow.predict(path, micro_batch_size=2).strategy", "it == scenario.strategy_text.replace('-z1', '-mb2-z1')"),
    ("crossflow.sweep(small, {'batch': [64, 128], 'seq_len': [2048]}).points",
     "it == {'workload.global_batch': (64, 128), 'workload.sequence': (2048, 2048)}"),
    ("crossflow.sweep(small, tp=[2, 4, 8], pp=[1, 2]).points['strategy']",
     "it == ('tp2-dp4', 'tp2-dp2-pp2', 'tp4-dp2', 'tp4-pp2', 'tp8', 'tp8-pp2')"),
    ("crossflow.sweep(small, micro_batch=[1, 2]).points", "it == {'strategy.micro_batch': (1, 2)}"),
    ("score.plot(x='batch', y='step_time')", "'Picture' in repr(it)"),
    ("crossflow.Scenario(path).strategy_text", "it == scenario.strategy_text"),
    ("crossflow.Scenario(**small.to_dict()).strategy_text", "it == small.strategy_text"),
    ("crossflow.Scenario(model='llama3-8b', system='dgx-h100', nodes=2, tp=8).devices", "it == 16"),
    # names of other tools for exactly the same thing, units at the end of a name, methods of tables, options of methods, written-out models
    ("crossflow.predict(model='llama3-8b', hardware='dgx-h100', seq=4096, batch=64, parallelism='tp4-dp2').step_time",
     "it == small.predict().step_time"),
    ("crossflow.plan(small, topk=2)", "len(it) == 2"), ("small.plan(top=2)", "len(it) == 2"),
    ("p.step_time_ms", "np.isclose(it, 1e3 * p.step_time)"), ("p.memory_gib", "np.isclose(it, p.memory.total / 2**30)"),
    ("p.memory.total_gb", "np.isclose(it, p.memory.total / 1e9)"), ("p.energy_kwh", "np.isclose(it, p.energy / 3.6e6)"),
    ("p.memory.weights_gib", "np.isclose(it, p.memory.weights / 2**30)"), ("p.memory.peak", "it == p.memory.total"),
    ("p.fits", "it is True"), ("p.tokens_per_gpu", "it == p.tokens_per_second_per_device"), ("plans.winner", "it is plans.best"),
    ("score.sort_values('step_time_s', ascending=False)", "list(it['workload.global_batch']) == [128, 64, 32]"),
    ("plans.head(3)", "len(it) == 3"), ("p.breakdown.to_frame()", "len(it) == 1"), ("p.breakdown.to_dict()", "it == dict(p.breakdown)"),
    ("small.copy(batch=128)", "it.batch == 128"), ("p.to_json(out / 'again.json')", "(out / 'again.json').read_text() == it"),
    ("small.to_yaml(out / 'again.yaml')", "crossflow.load(out / 'again.yaml').batch == 64"),
    ("crossflow.minimize", "it is crossflow.optimise"),
    ("crossflow.predict(model={'layers': 16, 'hidden': 2048, 'heads': 16, 'ffn': 8192, 'vocabulary': 32000, 'sequence': 2048}, "
     "on='dgx-h100', batch=64, tp=8)", "it.feasible and it.scenario.workload.layers == 16"),
    # the fourth round: files of pictures, a system that is written out, what a model has
    ("p.plot(out / 'p.png')", "(out / 'p.png').is_file() and 'Picture' in repr(it)"),
    ("plans.plot(out / 'plans.png')", "(out / 'plans.svg').is_file()"), ("step.plot(out / 'step.png')", "(out / 'step.png').is_file()"),
    ("crossflow.predict(model='llama3-8b', on={'template': 'dgx-h100', 'nodes': 2}, batch=64).devices", "it == 16"),
    ("crossflow.load(model='llama3-8b', on={'template': 'dgx-h100', 'network': {'inter': {'bandwidth': '25 GB/s'}}}, nodes=4).to_dict()",
     "it['system'] == {'template': 'dgx-h100', 'nodes': 4, 'network': {'inter': {'bandwidth': '25 GB/s'}}}"),
    ("crossflow.show('llama3-8b').parameters", "it == 8030261248"), ("crossflow.show('llama3-8b').layers", "it == 32"),
    ("crossflow.export(small, 'megatron', strategy=plans.best.strategy)", "'--bf16' in it"),
    ("crossflow.predict(small, system__operation__carbon_intensity='400 g/kWh').carbon_kg", "it > 0"),
    ("crossflow.show('llama3-8b').title", "it == 'Llama 3 8B'"), ("crossflow.example('llama')", "str(it) == path"),
]  # fmt: skip
OF_PANDAS = ("score.sort_values('step_time_s', ascending=False)", "plans.head(3)", "p.breakdown.to_frame()")


@pytest.mark.slow
@pytest.mark.parametrize(("guess", "truth"), WORKS, ids=[guess for guess, _ in WORKS])
def test_what_people_guess_works(names, guess, truth):
    if guess in OF_PANDAS:
        pytest.importorskip("pandas")
    held = {**names, "json": json}
    held["it"] = eval(guess, held)
    assert eval(truth, held), held["it"]


ANSWERED = [
    ("p.tps", "Prediction has no attribute 'tps'; did you mean 'tokens_per_second'?"),
    ("p.latency", "Prediction has no attribute 'latency'; did you mean 'step_time'?"),
    ("p.bottlenecks", "Prediction has no attribute 'bottlenecks'; did you mean 'bound_by'?"),
    ("p.tflops", "Prediction has no attribute 'tflops'; did you mean 'mfu'?"),
    ("p.breakdown.computation", "Amounts has no attribute 'computation'; did you mean 'compute'?"),
    ("p['tokens_per_s']", "no column 'tokens_per_s'; did you mean 'tokens_per_second'?"),
    ("p.steptime", "Prediction has no attribute 'steptime'; did you mean 'step_time'?"),
    ("score.df", "Score has no attribute 'df'; did you mean 'to_frame'?"),
    ("scenario.set", "Scenario has no attribute 'set'; did you mean 'replace'?"),
    ("crossflow.load_model", "module 'crossflow' has no attribute 'load_model'; did you mean 'show'?"),
    ("crossflow.predict(path, batch_size=8)",
     "predict() takes no 'batch_size'; did you mean 'batch'? (any path is a keyword too: system__nodes=8)"),
    ("crossflow.predict(path, gpus=8, devices=16)", "predict() was given 'devices' twice, once as 'gpus'; give one of them"),
    ("crossflow.sweep(path, tp=[4, 8], nodes=[1, 2])",
     "sweep() varies nodes, and tp leave dp open; give dp too, or strategies: strategy=['tp4-dp2', 'tp8']"),
    ("crossflow.sweep(path, batch=[64], nodes=[1], zip=True)",
     "sweep() takes no 'zip': a sweep takes every combination; crossflow.evaluate(scenario, {'system.nodes': [2, 4], "
     "'workload.global_batch': [64, 128]}) takes one value a point, and a name couples settings: sweep(scenario, {'size': {'small': "
     "{'system.nodes': 2, 'workload.global_batch': 64}}})"),
    ("crossflow.predict({**small.to_dict(), 'strategy': 'auto'}, micro_batch=2)",
     "predict: micro_batch=2 is part of a strategy, and none is given; give its degrees too, such as tp=8"),
    ("score.shape", "Score has no attribute 'shape': len(results) is the number of rows"),
    ("crossflow.predict(path, dtype=np.float32)",
     "settings: workload.dtype: expected text or a number, got the type float32; types of numbers are text: 'bf16'"),
    ("score.plot().savefig", "Picture has no attribute 'savefig': save(path) writes the picture"),
    ("crossflow.predict(path, strategy='tp8', tp=8)", "predict() was given strategy='tp8' and tp=8: degrees are a strategy"),
    ("crossflow.predict(model='llama3-8b')",
     "predict: give a scenario, or a model and a system, such as model='llama3-70b', on='dgx-h100'; 'on' is missing"),
    ("p.save('p.txt')", "p.txt: the data of a Prediction is written as JSON; name it p.json"),
    ("p.save('p.json.gz')", "p.json.gz: the data of a Prediction is written as JSON; name it p.json"),
    ("crossflow.compare([p, p])",
     "compare() takes a model and the names of systems, such as compare('llama3-8b', on=['dgx-h100', 'dgx-a100']), not "
     "[Prediction('llama': 19.03 s, bound by compute), Predict ..."),
    ("crossflow.compare('llama3-8b', on=['dgx-h100', 'dgx-a100'], devices=8, price={'h100': 2})",
     "compare() takes no 'price'; did you mean 'prices'? such as prices={'h100': 2.2, 'b200': 4.5}"),
    ("crossflow.compare('llama3-8b', on=['dgx-h100', 'dgx-a100'], devices=8, context=4096)",
     "compare() takes no 'context'; did you mean 'sequence'? (any path is a keyword too: system__nodes=8)"),
    ("crossflow.predict(path, batch=np.array([64, 128]))",
     "settings: workload.global_batch: expected one value, got an array; sweep and evaluate of crossflow take many"),
    ("crossflow.evaluate('s.yaml', {'workload.global_batch': [64]})",
     "evaluate: expected a scenario, got 's.yaml'; crossflow.load reads one, and crossflow.sweep takes files and mappings too"),
    ("crossflow.serve(model='llama3-8b', on='dgx-h100', rate=5)",
     "serve() takes no 'rate': requests say how they come: requests={'arrivals': {'law': 'poisson', 'rate': '5 1/s'}, 'count': 200, "
     "'prompt': 500, 'output': 100}"),
    ("p.step_time_gb", "Prediction has no attribute 'step_time_gb'; did you mean 'step_time'?"),
    ("scenario.parameters", "Scenario has no attribute 'parameters': crossflow.show(name of a model).parameters counts them"),
    ("p.bubble", "Prediction has no attribute 'bubble': breakdown.bubble / step_time is the share of idle stages"),
    ("p.co2", "Prediction has no attribute 'co2': it needs the carbon of a kWh: system__operation__carbon_intensity='400 g/kWh'"),
    ("plans.export",
     "Plans has no attribute 'export': crossflow.export(scenario, 'megatron', strategy=plans.best.strategy) writes a launch file"),
    ("e.levers", "Explanation has no attribute 'levers': lever is the largest; effects has all, in order"),
    ("crossflow.show('llama3-8b').layerz", "Sheet has no attribute 'layerz'; did you mean 'layers'?"),
    ("crossflow.Strategy", "module 'crossflow' has no attribute 'Strategy'; did you mean 'Scenario'?"),
    ("crossflow.forecast", "module 'crossflow' has no attribute 'forecast'"),
    ("step.save('x.pdf')",
     "x.pdf: a trace ends in .json or .json.gz, a picture in .png or .svg; a name without ending is a folder of traces"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("guess", "sentence"), ANSWERED, ids=[guess for guess, _ in ANSWERED])
def test_what_does_not_work_names_what_does(names, guess, sentence):
    with pytest.raises((AttributeError, KeyError, TypeError, CrossflowError)) as found:
        eval(guess, dict(names))
    assert found.value.args[0] == sentence


@pytest.mark.slow
@pytest.mark.parametrize("name", ["p", "plans", "score", "e", "study"])
def test_results_are_frames_too(names, name):
    pytest.importorskip("pandas")
    result = names[name]
    assert len(result.to_pandas()) == len(result.to_frame()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("guess", ["p.plot()", "step.plot()", "e.plot()", "score.plot()"])
def test_results_draw_themselves(names, guess):
    assert "Picture(" in repr(eval(guess, dict(names)))


@pytest.mark.parametrize(
    ("varied", "options"),
    [
        ({"zero": [0, 1]}, {"zero": 1}),
        ({"sequence_parallel": [False, True]}, {"sequence_parallel": True}),
        ({"offload": ["activations"]}, {"offload": "activations"}),
    ],
)
def test_sweeps_of_options_are_predictions(varied, options):
    start = crossflow.from_dict({"system": "dgx-h100", "workload": {"model": "llama3-8b", "global_batch": 16}, "strategy": "tp8"})
    found = crossflow.sweep(start, tp=[np.int64(4)], **varied)
    assert found.step_time[-1] == pytest.approx(crossflow.predict(start, tp=4, **options).step_time, rel=1e-12)  # added up together


def test_points_of_which_none_fits_are_not_called_fast():
    found = crossflow.sweep({"system": "dgx-h100", "workload": "llama3-70b", "strategy": "dp8"}, batch=[8, 16])
    assert "2 points, 0 feasible; the fastest (workload.global_batch = 8, point 0 counted from 0): needs " in repr(found)
    assert "of memory per device" in repr(found)


def test_the_fastest_point_is_named_by_its_settings_and_its_index():
    start = {"system": "dgx-h100", "workload": {"model": "llama3-8b", "global_batch": 16}, "strategy": "tp8"}
    found = crossflow.sweep(start, batch=[32, 16])
    assert repr(found).endswith(" (workload.global_batch = 16, point 1 counted from 0))")
    assert "point" not in repr(found.take([1])).removeprefix("Score(1 point")  # the only one needs no name


@pytest.mark.parametrize("degrees", [{"tp": 8}, {"tp": 2, "pp": 2}, {"tp": 8, "zero": 3}, {"tp": 2, "dp": 4}])
def test_swept_degrees_leave_the_rest_of_the_strategy_as_a_prediction_does(degrees):
    start = {"system": "dgx-h100", "workload": {"model": "llama3-8b", "global_batch": 16}, "strategy": "tp4-dp2-z1-sp-mb2"}
    found = crossflow.sweep(start, **{name: [size] for name, size in degrees.items()})
    assert found.points["strategy"] == (crossflow.predict(start, **degrees).strategy,)


@pytest.mark.parametrize(
    ("values", "named"),
    [({"tp": [2]}, {"tp": [4]}), ({"workload.global_batch": [8]}, {"batch": [16]}), ({"nodes": [1], "system.nodes": [2]}, {})],
)
def test_a_setting_is_swept_once(values, named):
    start = crossflow.from_dict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "tp8"})
    with pytest.raises(TypeError, match="twice"):
        crossflow.sweep(start, values, **named)


def test_a_comparison_seeks_the_strategy():
    with pytest.raises(CrossflowError, match="leave strategy out"):
        crossflow.compare("llama3-8b", "dgx-h100,dgx-a100", devices=8, tp=8)


def test_functions_stay_functions_when_packages_of_their_names_are_imported():
    from crossflow.answers.search.driver import search as inner
    from crossflow.answers.study.run import run_study
    from crossflow.engine.timeline.record import Timeline

    assert crossflow.study is run_study is crossflow.run_study
    assert crossflow.search is crossflow.optimise is not inner
    assert callable(crossflow.timeline)
    assert crossflow.Timeline is Timeline
    assert all(not name.startswith("_") and re.match(r"[\w.]+(:\w+)?$", place) for name, place in crossflow._PUBLIC.items())
    assert sys.modules["crossflow.answers.study"].__doc__.startswith("Studies")


SHORT = {"model": "llama3-8b", "on": "dgx-h100", "batch": 64}


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"fp8": True}, "takes no 'fp8': the type of matrix products is dtype='fp8'"),
        ({"lora_rank": 16}, "takes no 'lora_rank': adapters of fine-tuning describe low-rank layers: adapters={'rank': 16}"),
        ({"fsdp": "full_shard"}, "takes no 'fsdp': sharding is part of a strategy: zero=3"),
        ({"gradient_checkpointing": True}, "recompute='full'"),
        ({"gradient_accumulation_steps": 4}, "give batch and micro_batch"),
        ({"per_device_train_batch_size": 1}, "did you mean 'micro_batch'?"),
    ],
)
def test_keywords_of_trainers_are_answered_by_the_setting(named, said):
    with pytest.raises(TypeError, match=re.escape(said)):
        crossflow.predict(**SHORT, **named)


def test_keywords_of_frameworks_are_the_setting():
    assert crossflow.load(**SHORT, tp_size=4, dp_size=2).document.data["strategy"] == {"tp": 4, "dp": 2}
    assert crossflow.load(**SHORT, tensor_parallel=8, torch_dtype="fp8").workload.dtype == "fp8"


def test_errors_name_settings_as_python_has_them():
    with pytest.raises(CrossflowError, match=r"^software=trtllm: ") as raised:
        crossflow.predict(**SHORT, backend="trtllm")
    assert "--set" not in f"{raised.value}{raised.value.problems[0]}"
    with pytest.raises(CrossflowError, match=re.escape("(with system.nodes=8)")):
        crossflow.predict(LLAMA, nodes=8)


def test_the_second_word_is_the_system_everywhere(tmp_path):
    score = crossflow.sweep("llama3-8b", "dgx-h100", strategy=["tp8", "tp4-dp2"], batch=[64])
    assert np.array_equal(score.step_time, crossflow.sweep("llama3-8b", on="dgx-h100", strategy=["tp8", "tp4-dp2"], batch=[64]).step_time)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
              "num_hidden_layers": 4, "num_attention_heads": 16, "vocab_size": 32000, "max_position_embeddings": 2048}  # fmt: skip
    (path := tmp_path / "mine.json").write_text(json.dumps(config))
    assert crossflow.load(str(path), "dgx-h100", tp=8, batch=8).workload.layers == 4


@pytest.mark.parametrize("top", ["3", 2.5, True])
def test_a_plan_lists_a_whole_number(top):
    with pytest.raises(TypeError, match="plan\\(\\) takes top as a whole number"):
        crossflow.plan(**SHORT, top=top)


def test_names_are_asked_for_by_name():
    assert crossflow.models()["llama3-70b"] == "Llama 3 70B"
    with pytest.raises(TypeError, match=r"the names are a list with \[\*crossflow\.models\(\)\]"):
        crossflow.models()[:3]
    with pytest.raises(KeyError, match="there is no 'llama3-70'; did you mean 'llama3-70b'"):
        crossflow.models()["llama3-70"]


def test_names_that_hold_a_word_are_asked_for_by_it():
    assert [*crossflow.models("Mixtral")] == ["mixtral-8x22b", "mixtral-8x7b"]
    assert "dgx-h100" in crossflow.systems("h100")
    assert "dgx-a100" not in crossflow.systems("h100")
    assert crossflow.models() == crossflow.models("")
    with pytest.raises(TypeError, match="expected a word that names hold, such as 'llama', got 70"):
        crossflow.models(70)


def test_what_a_prediction_consists_of_is_shown_by_its_name():
    """The device alone took 17,000 characters of a notebook, the library 85,000."""
    scenario = crossflow.from_dict({"system": "dgx-h100", "workload": "llama3-8b", "strategy": "dp8-z3"})
    assert (repr(scenario.system), str(scenario.stack)) == ("DatasheetSystem('dgx-h100')", "SoftwareStack('megatron-core')")
    assert (repr(scenario.architecture), repr(scenario.library)) == ("Architecture('dgx-h100')", "TechLibrary('devices')")


def test_a_prediction_in_the_place_of_a_scenario_is_told_what_to_give():
    found = crossflow.predict({"system": "h100-sxm", "workload": {"model": "gemm", "m": 8, "n": 8, "k": 8}})
    with pytest.raises(crossflow.CrossflowError, match=r"got Prediction; it holds one: give its \.scenario$"):
        crossflow.predict(found)


def test_a_plan_in_the_place_of_a_scenario_is_told_what_to_give():
    best = crossflow.plan("llama3-8b", "dgx-h100", task="decode", batch=8).best
    with pytest.raises(crossflow.CrossflowError, match=r"got RankedPlan; it holds one: give its \.scenario$"):
        crossflow.export(best, "vllm")
    assert crossflow.export(best.scenario, "vllm") == best.export("vllm")


@pytest.mark.parametrize(("name", "meant"), [("memory", "predict"), ("goodput", "predict"), ("Model", "models")])
def test_what_the_package_lacks_is_answered_by_what_says_it(name, meant):
    with pytest.raises(AttributeError, match=f"did you mean '{meant}'"):
        getattr(crossflow, name)


def test_requests_at_once_of_another_engine_are_those_of_a_batch():
    with pytest.raises(TypeError, match="no 'max_batch_size'; did you mean 'batch'"):
        crossflow.predict("llama3-8b", "dgx-h100", max_batch_size=64)


def test_several_systems_may_stand_where_one_does_in_a_sweep():
    found = crossflow.sweep("llama3-8b", ["dgx-h100", "dgx-a100"], tp=8, batch=8, task="decode", output=16)
    assert found.points["system.template"] == ("dgx-h100", "dgx-a100")


@pytest.mark.parametrize(("keyword", "told"), [("tokens", "run={'tokens': 1e12} or"), ("gpu_memory_utilization", "margin=0.2")])
def test_what_is_no_keyword_is_told_where_it_stands(keyword, told):
    with pytest.raises(TypeError) as error:
        crossflow.plan("llama3-8b", "dgx-h100", **{keyword: 0.9})
    assert told in str(error.value)
