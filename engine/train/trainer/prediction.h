// A layer's output for a whole data set, in the order of the samples, as one file: .npy, or .safetensors with the one
// tensor. Each rank writes the parts that it has.
#pragma once

#include <string>

#include "engine/planning/planned_job.h"
#include "engine/train/trainer/printed_tensors.h"

namespace trainctl {

/// Makes the job's evaluation compute this layer's output, and nothing that it does not need; with `has_loss` also the
/// loss and the metrics. Throws SpecError (--layer) if there is no such layer, or its rows are not those of the batch.
void predict_layer(PlannedJob& job, const std::string& layer, bool has_loss = false);

/// Returns whether predict_layer accepts the layer, and the ranks know which part of its output each of them has.
bool may_predict(const PlannedJob& job, const std::string& layer);

/// The layer whose output the loss reads: the answer of the network. The job has a loss.
std::string answer_layer(const JobSpec& spec);

class PredictionFile {
 public:
  /// After predict_layer; `program` is the evaluation's. All must outlive it. Throws SpecError for another ending of
  /// `path`.
  PredictionFile(const PlannedJob& job, const Program& program, std::string path);

  /// Writes what a print instruction of batch `batch` shows. Throws EnvError.
  void write(int64_t batch, const Operand& printed, const void* data, int micro_batch) const;

 private:
  const PlannedJob& job_;
  const PrintedTensors printed_;
  const std::string path_;
};

/// Throws SpecError (-o) unless the name ends in .npy or .safetensors.
void require_prediction_name(const std::string& path);

}  // namespace trainctl
