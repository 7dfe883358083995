// Tests of properties of the times that a machine model predicts, and of the file that describes a machine.
#include "engine/machine/machine.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <random>

#include "engine/base/error.h"
#include "engine/machine/machine_text.h"

using namespace trainctl;

namespace {

constexpr std::array kKinds = {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
                               Collective::all_to_all, Collective::broadcast};

KernelSample sample(double flops, double bytes, double seconds) {
  return {{std::log2(flops), std::log2(bytes)}, {.flops = flops, .bytes = bytes}, {seconds}};
}

/// The seconds of a machine that needs 2 us to start and makes 1e9 operations and 1e8 bytes per second.
double affine(double flops, double bytes) { return 2e-6 + flops / 1e9 + bytes / 1e8; }

}  // namespace

TEST_CASE("a kernel whose time is affine in its operations and bytes is predicted at sizes that were not measured") {
  std::vector<KernelSample> samples;
  for (const double flops : {1e4, 1e5, 1e6, 1e7})
    for (const double bytes : {1e3, 3e4, 5e5}) samples.push_back(sample(flops, bytes, affine(flops, bytes)));
  const KernelModel model(samples);
  CHECK(model.error() < 1e-6);
  for (const double flops : {2e4, 7e6, 9e8})
    for (const double bytes : {2e3, 4e6}) {
      const double seconds =
          model.seconds({std::log2(flops), std::log2(bytes)}, {.flops = flops, .bytes = bytes}).value;
      CHECK(seconds == doctest::Approx(affine(flops, bytes)).epsilon(1e-6));
    }
}

TEST_CASE("a measured size is predicted exactly, and predictions for nearby sizes are pulled towards it") {
  std::vector<KernelSample> samples;
  for (const double flops : {1e4, 1e5, 1e6, 1e7, 1e8}) samples.push_back(sample(flops, 1e3, affine(flops, 1e3)));
  samples[2].seconds = {3 * samples[2].seconds.value};  // an odd size
  const KernelModel model(samples);
  CHECK(model.seconds(samples[2].sizes, samples[2].cost).value == doctest::Approx(samples[2].seconds.value));
  CHECK(model.error() > 0.1);
  CHECK(model.error(samples[2].sizes, samples[2].cost) < 0.05);
  CHECK(model.error({40, 40}, {}) == model.error());
  const Cost near{.flops = 1.05e6, .bytes = 1e3};
  CHECK(model.seconds({std::log2(near.flops), std::log2(1e3)}, near).value > 2 * affine(near.flops, 1e3));
}

TEST_CASE("no coefficient of a model is negative, so that more work never takes less time") {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> exponent(3, 8), noise(0.5, 2);
  for (int round = 0; round < 50; ++round) {
    std::vector<KernelSample> samples;
    for (int i = 0; i < 3 + round % 5; ++i) {
      const double flops = std::pow(10, exponent(random)), bytes = std::pow(10, exponent(random));
      samples.push_back(sample(flops, bytes, affine(flops, bytes) * noise(random)));
    }
    const KernelModel model(samples);
    // A point far from all samples, where almost nothing is interpolated.
    constexpr double kNext = 1 - 1e-6;
    const std::vector<double> far(2, 400);
    const double one = model.seconds(far, {.flops = 1e6, .bytes = 1e6}).value;
    CHECK(model.seconds(far, {.flops = 1e9, .bytes = 1e6}).value >= kNext * one);
    CHECK(model.seconds(far, {.flops = 1e6, .bytes = 1e9}).value >= kNext * one);
    CHECK(one > 0);
  }
}

TEST_CASE("calls of equal sizes are distinguished by their attributes and operations") {
  std::vector<KernelSample> samples;
  for (const char* attrs : {"{causal: true}", "{}"})
    for (const double flops : {1e6, 4e6})
      samples.push_back({{20, 20}, {.flops = flops, .bytes = 2e6}, {flops * 1e-10}, attrs});
  for (KernelSample& sample : samples)
    if (sample.attrs == "{}") sample.seconds = 3 * sample.seconds;
  const KernelModel model(samples);
  for (const KernelSample& sample : samples) {
    CHECK(model.seconds(sample.sizes, sample.cost, sample.attrs).value == doctest::Approx(sample.seconds.value));
    CHECK(model.error(sample.sizes, sample.cost, sample.attrs) == 0.03);
    CHECK(model.error(sample.sizes, sample.cost, "{other: 1}") > 0.03);
  }
}

TEST_CASE("a kernel measured only at sizes dominated by its launch has the machine's rates at large sizes") {
  Machine machine = *find_machine("h100x8");
  const KernelDef& add = get_kernel("add");
  const auto call = [](int64_t n) { return TensorInfo{{n}, DType::f32}; };
  const auto time = [&](int64_t n) {
    const std::vector<TensorInfo> in = {call(n), call(n)}, out = {call(n)};
    return kernel_time(machine, add, in, out, {}).value;
  };
  const double at_rates = time(int64_t{1} << 30);
  std::vector<KernelSample> samples;
  for (const int64_t n : {1000, 2000, 8000}) {
    const std::vector<TensorInfo> in = {call(n), call(n)}, out = {call(n)};
    samples.push_back(
        {kernel_sizes(in, out), kernel_cost(add, in, out, {}), {2e-6 + 1e-10 * static_cast<double>(n)}, "{}"});
  }
  const std::vector<TensorInfo> in = {call(1), call(1)}, out = {call(1)};
  machine.kernels.emplace(kernel_key(add, in, out, {}), KernelModel(samples));
  CHECK(time(2000) == doctest::Approx(samples[1].seconds.value));
  CHECK(time(int64_t{1} << 30) == doctest::Approx(at_rates).epsilon(0.01));
  double before = 0;
  for (int64_t n = 8000; n <= int64_t{1} << 30; n *= 2) {
    CHECK(time(n) > before);
    before = time(n);
  }
}

TEST_CASE("the cost of steps beyond their kernels is recovered from measured steps") {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> noise(0.995, 1.005);
  const StepCost true_cost{.product_stretch = 1.04, .other_stretch = 1.15, .gap = {1.2e-6}, .host = {4e-5}};
  std::vector<StepSample> samples;
  for (const auto& [kernels, alone, products] : {std::tuple{20, 2e-4, 1e-5},
                                                 {300, 3e-2, 2.8e-2},
                                                 {700, 9e-2, 4e-2},
                                                 {40, 1e-2, 9e-3},
                                                 {900, 5e-3, 1e-3},
                                                 {10, 5e-5, 0}}) {
    StepSample& step = samples.emplace_back(StepSample{"job", kernels, {alone}, {}, {products}});
    step.measured = noise(random) * true_cost.seconds(step);
  }
  const StepCost found = step_cost(samples);
  CHECK(found.product_stretch == doctest::Approx(true_cost.product_stretch).epsilon(0.02));
  CHECK(found.other_stretch == doctest::Approx(true_cost.other_stretch).epsilon(0.03));
  CHECK(found.error < 0.03);
  for (const StepSample& step : {StepSample{"", 500, {2e-2}, {}, {1e-2}}, StepSample{"", 30, {1e-3}, {}, {9e-4}}})
    CHECK(found.seconds(step).value == doctest::Approx(true_cost.seconds(step).value).epsilon(0.03));
}

TEST_CASE(
    "a machine without measured steps adds nothing, and no measured steps make a kernel or the host take less than "
    "nothing") {
  const StepCost none = step_cost({});
  CHECK(none.product_stretch == 1);
  CHECK(none.other_stretch == 1);
  CHECK(none.gap == Seconds{});
  CHECK(none.host == Seconds{});
  CHECK(none.error == 0);
  std::mt19937 random(5);
  std::uniform_real_distribution<double> exponent(-5, 0), factor(0.3, 3), part(0, 1);
  for (int round = 0; round < 1000; ++round) {
    std::vector<StepSample> samples;
    for (int i = 0; i <= round % 6; ++i) {
      const double alone = std::pow(10, exponent(random));
      samples.push_back({"",
                         1 + static_cast<int>(exponent(random) * exponent(random) * 40),
                         {alone},
                         {alone * factor(random)},
                         {alone * part(random)}});
    }
    const StepCost cost = step_cost(samples);
    CHECK(cost.product_stretch > 0);
    CHECK(cost.other_stretch > 0);
    for (const double seconds : {1e-7, 2e-6, 1e-3}) CHECK(cost.of_kernel({seconds}, round % 2 == 0, true) > Seconds{});
    CHECK(cost.host >= Seconds{});
    CHECK(std::isfinite(cost.error));
    // If a step took longer than its kernels alone, the prediction is not shorter than the kernels, and the reverse.
    if (samples.size() == 1) {
      const double predicted = cost.seconds(samples[0]).value, alone = samples[0].alone.value;
      CHECK((predicted - alone) * (samples[0].measured.value - alone) >= -1e-15);
    }
  }
}

TEST_CASE("the spread of a group says how many hosts it spans") {
  const Machine& machine = *find_machine("h200x8");
  const auto units = [&](const std::vector<int>& ranks) { return spread_of(machine, ranks).units; };
  CHECK(units({0, 1, 2, 3, 4, 5, 6, 7}) == std::vector<int>{8, 1});
  CHECK(units({0, 8, 16}) == std::vector<int>{1, 3});
  CHECK(units({6, 7, 8, 9}) == std::vector<int>{2, 2});
  CHECK(spread_of(machine, std::vector<int>{3}).size() == 1);
}

TEST_CASE("a call over the network takes longer than one within a host, and more bandwidth never takes longer") {
  Machine machine = *find_machine("h100x8");
  const std::vector<int> inside = {0, 1, 2, 3}, across = {0, 8, 16, 24}, both = {0, 1, 8, 9};
  for (const Collective kind : kKinds) {
    for (const double bytes : {64.0, 1e6, 1e9}) {
      CAPTURE(bytes);
      const auto time = [&](const Machine& m, const std::vector<int>& ranks) {
        return collective_time(m, kind, {bytes}, spread_of(m, ranks)).value;
      };
      CHECK(time(machine, inside) < time(machine, both));
      CHECK(time(machine, both) < time(machine, across) * (1 + 1e-9) + 20e-6);
      Machine faster = machine;
      for (LinkLevel& link : faster.links) link.bandwidth = 2 * link.bandwidth;
      for (const auto& ranks : {inside, across, both}) CHECK(time(faster, ranks) <= time(machine, ranks));
      CHECK(time(machine, {5}) == 0);
    }
  }
}

TEST_CASE("with two ranks on each of two hosts, each device sends half of what passes between the hosts") {
  Machine machine = *find_machine("h100x8");
  for (LinkLevel& link : machine.links) link.latency = {};
  machine.links[0].bandwidth = {1e15};  // only the network counts
  const double n = 1e9, network = machine.links[1].bandwidth.value;
  const auto time = [&](const std::vector<int>& ranks) {
    return collective_time(machine, Collective::all_reduce, {n}, spread_of(machine, ranks)).value;
  };
  CHECK(time({0, 8}) == doctest::Approx(2 * n / 2 / network));
  CHECK(time({0, 1, 8, 9}) == doctest::Approx(2 * n / 2 / 2 / network));
}

TEST_CASE("a group that spans hosts in the same way as a measured group takes the measured time") {
  Machine machine = *find_machine("h100x8");
  const GroupSpread eight{{8, 1}};
  CHECK(call_key(Collective::all_reduce, eight) == "all_reduce 8");
  CHECK(call_key(Collective::all_gather, {{4, 2}}) == "all_gather 4x2");
  machine.calls.emplace("all_reduce 8", KernelModel({{call_sizes({1e6}), {.bytes = 1.75e6}, {0.125}}}));
  CHECK(collective_time(machine, Collective::all_reduce, {1e6}, eight).value == doctest::Approx(0.125));
  CHECK(collective_time(machine, Collective::all_gather, {1e6}, eight).value < 1e-3);
}

TEST_CASE(
    "the time of a message is the one measured between ranks in the same places, or follows from latency and "
    "bandwidth") {
  Machine machine = *find_machine("h100x8");
  const GroupSpread within = spread_of(machine, std::array{2, 5}), across = spread_of(machine, std::array{2, 13});
  CHECK(message_key(within) == "message 2");
  CHECK(message_key(across) == "message 1x2");
  const LinkLevel &link = machine.links[0], &network = machine.links[1];
  CHECK(send_time(machine, {1e6}, within) == link.latency + Bytes{1e6} / link.bandwidth);
  std::vector<KernelSample> samples;
  for (const double bytes : {1e3, 1e6, 1e8})
    samples.push_back({call_sizes({bytes}), {.bytes = bytes}, {2e-5 + bytes / 5e10}});
  machine.calls.emplace("message 2", KernelModel(samples));
  for (const double bytes : {1e3, 3e5, 1e6, 2e7})
    CHECK(send_time(machine, {bytes}, within).value == doctest::Approx(2e-5 + bytes / 5e10).epsilon(1e-3));
  CHECK(send_time(machine, {1e6}, across) == network.latency + Bytes{1e6} / network.bandwidth);
  CHECK(send_time(machine, {1e6}, spread_of(machine, std::array{3, 3})) == Seconds{});
}

TEST_CASE("a machine file from before calls had delays has no delays") {
  Machine machine = *find_machine("h100x8");
  machine.delays = {.exposed = {1e-5}, .beside = {2e-5}};
  std::string text = to_json(machine);
  CHECK(machine_of_json(text, "file").delays == machine.delays);
  const size_t begin = text.find(" \"call_delay_seconds\""), end = text.find("},", begin) + 2;
  REQUIRE(begin < end);
  text.erase(begin, end - begin);
  CHECK(machine_of_json(text, "file").delays == CallDelays{});
}

TEST_CASE("a machine file contains everything about the machine") {
  for (Machine machine : known_machines()) {
    machine.kernels.emplace("matmul f32 f32 -> f32", KernelModel({sample(1e6, 1e4, 3e-5), sample(1e7, 1e5, 2e-4)}));
    machine.calls.emplace("all_reduce 8", KernelModel({{call_sizes({1e6}), {.bytes = 1.75e6}, {0.125}}}));
    machine.kernels.emplace("attention bf16 -> bf16",
                            KernelModel({{{20, 20}, {.flops = 1e6, .bytes = 2e6}, {1e-4}, "{causal: true}"}}));
    machine.steps = {{"gpt2", 365, {0.0304}, {0.0322}}};
    machine.delays = {.exposed = {1.2e-5}, .beside = {2.1e-5}};
    machine.overlap_cost = 1.17;
    machine.wait_cost = 1.3;
    CHECK(machine_of_json(to_json(machine), "file") == machine);
  }
}

TEST_CASE("a machine's file that is wrong is refused with the field") {
  const std::string good = to_json(*find_machine("h100x8"));
  const auto wrong = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    try {
      (void)machine_of_json(text, "m.json");
    } catch (const EnvError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(wrong("{", "") == "m.json: not valid JSON");
  CHECK(wrong("\"name\": \"h100x8\"", "\"name\": 8") == "m.json.name: expected text");
  CHECK(wrong("\"kind\": \"cuda\"", "\"kind\": \"tpu\"") == "m.json.kind: expected cpu or cuda");
  CHECK(wrong("\"overlaps\"", "\"overlap\"") == "m.json has no field 'overlaps'");
  CHECK(wrong("\"overlap_cost\": 1.1", "\"overlap_cost\": 0.5").starts_with("m.json.overlap_cost: must be at least 1"));
  CHECK(wrong("\"beside\": 0.0", "\"beside\": -1").starts_with("m.json.call_delay_seconds.beside: "));
  CHECK(wrong("\"devices\": 0", "\"devices\": 64").starts_with("m.json.links: the last one must connect any number"));
  CHECK(wrong("\"latency_seconds\": ", "\"latency_seconds\": -").starts_with("m.json.links[0].latency_seconds: "));
  CHECK(wrong("\"kernels\": {}", "\"kernels\": {\"relu f32 -> f32\": []}") ==
        "m.json.kernels.relu f32 -> f32: has no sample");
}
