// A layer's output for a whole data set, in the order of the samples, as one file: .npy, or .safetensors with the one
// tensor.
#include "engine/train/trainer/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/model/evaluation.h"
#include "engine/spec/adapters.h"
#include "engine/train/files/npy_file.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

TensorId output_of(const PlannedJob& job, const std::string& layer) {
  const auto found = job.graph.find_tensor(read_layer(job.spec, layer));
  if (found && job.graph.tensors[static_cast<size_t>(*found)].kind == TensorKind::activation) return *found;
  std::vector<std::string> names;
  for (const LayerSpec& one : job.spec.network)
    for (std::string& output : one.output_names()) names.push_back(std::move(output));
  const std::string guess = did_you_mean(layer, names);
  throw SpecError({}, "--layer", "there is no layer '" + layer + "'",
                  guess.empty() ? "`trainctl show graph` lists the layers" : guess);
}

/// Returns the part of the file that comes before the data. 16-bit floats are written as f32.
std::string head_of(const std::string& path, const std::string& tensor, const Shape& whole, DType dtype) {
  if (path.ends_with(".npy")) return npy_head(whole, dtype);
  const DType stored = is_half(dtype) ? DType::f32 : dtype;
  return safetensors_head(lay_out({{.name = tensor, .type = stored_type(stored), .shape = whole}}));
}

}  // namespace

void require_prediction_name(const std::string& path) {
  if (path.ends_with(".npy") || path.ends_with(".safetensors")) return;
  throw SpecError({}, "-o", "'" + path + "' is neither .npy nor .safetensors", "e.g. -o out.npy");
}

std::string answer_layer(const JobSpec& spec) {
  check(spec.loss && !spec.loss->input.empty(), "a job with a loss has an answer");
  return spec.loss->input;
}

bool may_predict(const PlannedJob& job, const std::string& layer) {
  if (!job.validation || job.plan.hybrid()) return false;
  try {
    PlannedJob tried = job;
    predict_layer(tried, layer);
  } catch (const SpecError&) {
    return false;
  }
  return true;
}

void predict_layer(PlannedJob& job, const std::string& layer, bool has_loss) {
  check(job.validation.has_value(), "a prediction is of the validation set");
  const TensorId wanted = output_of(job, layer);
  Graph graph = has_loss ? evaluation_graph(job.graph, wanted) : prediction_graph(job.graph, wanted);
  const Tensor& tensor = graph.tensors[static_cast<size_t>(graph.prints[0])];
  if (tensor.kind != TensorKind::activation)
    throw SpecError({}, "--layer", "'" + layer + "' returns the data unchanged");
  if (tensor.batch.dim != 0 || tensor.batch.outer != 1)
    throw SpecError({}, "--layer",
                    fmt::format("the rows of '{}' {} do not correspond to samples", layer, to_string(tensor.shape)),
                    "choose a layer whose dim 0 is the batch");
  job.graph.prints = graph.prints;
  job.validation->graph = std::move(graph);
}

PredictionFile::PredictionFile(const PlannedJob& job, const Program& program, std::string path)
    : job_(job), printed_(job, program), path_(std::move(path)) {
  require_prediction_name(path_);
}

void PredictionFile::write(int64_t batch, const Operand& printed, const void* data, int micro_batch) const {
  PrintedPart part = printed_.part(printed, micro_batch);
  if (!part.known)
    throw EnvError("the shard of " + printed.tensor +
                   " on each rank is unknown, because the hybrid_parallel network has its own collectives; run it on "
                   "one rank");
  if (!part.first_holder) return;
  // Rows of the tensor to a sample: a reshape may have merged other dims into the batch.
  const int64_t rows = part.whole[0] / job_.validation->set.batch;
  part.first[0] += batch * part.whole[0];
  part.whole[0] = job_.validation->data.samples * rows;
  part.shape[0] = std::min(part.shape[0], part.whole[0] - part.first[0]);
  if (part.shape[0] <= 0) return;  // these rows only fill up the last batch
  write_tensor_part(path_, head_of(path_, printed.tensor, part.whole, printed.dtype), part.whole, printed.dtype,
                    part.first, part.shape, data);
}

}  // namespace trainctl
