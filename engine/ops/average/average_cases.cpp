// Cases of average: its kernels in double precision, and the shapes, sharding rules, gradients and errors to expect.
#include "tests/op_cases/op_cases.h"

namespace trainctl {
namespace {

std::vector<KernelCase> average_kernels() {
  std::vector<KernelCase> calls;
  for (const int64_t n : {1, 7, 4096, 70001}) {
    for (const float rate : {1.0f, 0.25f, 0.0f})
      calls.push_back({"average_weights", {{{n}}}, {{{n}}}, {}, 2e-6, {.average_rate = rate}});
    calls.push_back({"exchange_average", {}, {{{n}}, {{n}}}, {}, 0});
    calls.push_back({"exchange_average", {}, {{{n}}, {{n}}, unwritten({n}, DType::bf16)}, {}, 1e-2});
    for (const bool nesterov : {true, false}) {
      const Attrs attrs = {{"learning_rate", 0.7}, {"momentum", 0.9}, {"nesterov", nesterov}, {"scale", 0.25}};
      for (const float rate : {0.0f, 1.0f}) {
        const StepScalars scalars{.average_rate = rate};
        calls.push_back({"outer_update", {{{n}}}, {{{n}}, {{n}}, unwritten({n})}, attrs, 2e-6, scalars});
        calls.push_back({"outer_update",
                         {{{n}}},
                         {{{n}}, {{n}}, unwritten({n}), unwritten({n}, DType::bf16)},
                         attrs,
                         1e-2,
                         scalars});
      }
    }
  }
  return calls;
}

naive::Outputs average_weights(const NaiveCall& call) {
  naive::Outputs out = call.before;
  const double rate = call.scalars.average_rate;
  for (size_t i = 0; i < out[0].values.size(); ++i)
    out[0].values[i] += rate * (call.in[0].values[i] - out[0].values[i]);
  return out;
}

naive::Outputs exchange_average(const NaiveCall& call) {
  naive::Outputs out = call.before;
  std::swap(out[0].values, out[1].values);
  if (out.size() > 2) out[2].values = out[0].values;
  return out;
}

/// The outer update (average_cpu.cpp): Nesterov or plain momentum on the mean difference of the replicas.
naive::Outputs outer_update(const NaiveCall& call) {
  naive::Outputs out = call.before;
  const double rate = call.attrs.number("learning_rate"), momentum = call.attrs.number("momentum"),
               scale = call.attrs.number("scale");
  const bool is_mean = call.scalars.average_rate == 1.0f;
  for (size_t i = 0; i < out[0].values.size(); ++i) {
    const double g = scale * call.in[0].values[i];
    auto& state = out[1].values[i];
    if (!is_mean) state = momentum * state + g;
    out[0].values[i] -= is_mean ? g : rate * (call.attrs.flag("nesterov") ? g + momentum * state : state);
  }
  for (size_t copy = 2; copy < out.size(); ++copy) out[copy].values = out[0].values;
  return out;
}

}  // namespace

extern const OpCases average_cases = {
    .kernels = average_kernels(),
    .kernel_references = {
        {"average_weights", average_weights}, {"exchange_average", exchange_average}, {"outer_update", outer_update}}};

}  // namespace trainctl
