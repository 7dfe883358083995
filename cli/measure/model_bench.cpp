// Times the kernels of public models' training steps (`trainctl bench model`).
#include "cli/measure/model_bench.h"

#include "engine/base/error.h"

namespace trainctl {

double ModelResult::seconds() const {
  double all = 0;
  for (const ModelOpResult& op : ops) all += op.seconds();
  return all;
}

ModelResult bench_model(const PublicModel& model, int64_t samples, int64_t length, const BenchType& type,
                        OpBench& bench) {
  ModelResult result{&model, samples, length, {}};
  for (ModelOp& op : model_ops(model, samples, length)) {
    ModelOpResult one{std::move(op), std::nullopt, ""};
    try {
      if (bench.has(one.op.op))
        one.result = bench.run(make_op_request(one.op.op, one.op.shapes, one.op.attrs, type));
      else
        one.why_not = "this trainctl has no kernel for " + one.op.op;
    } catch (const SpecError& error) {
      one.why_not = error.diagnostics().empty() ? error.what() : error.diagnostics().front().message;
    }
    result.ops.push_back(std::move(one));
  }
  return result;
}

}  // namespace trainctl
