// checkpoint.json: the contents of a checkpoint and their places in its files. Nothing else is consulted about a
// checkpoint.
//
//   {"format": 1, "trainctl": "0.1.0", "name": "mnist_mlp", "run": 3, "attempt": 3, "step": 120, "epoch": 2,
//    "epoch_step": 20, "samples": 3840, "seed": 1, "written": "2026-11-23T12:00:00Z",
//    "lineage": "52d0…", "weights_only": true,
//    "base": {"from": "/models/llama", "fingerprint": "9f86…",
//             "tensors": [{"name": "h.0.qkv.weight", "shape": [64, 32]}, …]},
//    "files": [{"name": "rank.0000.safetensors", "bytes": 1606000, "xxh128": "9f86…"}, …],
//    "tensors": [{"name": "layer1.weight", "slot": "weight", "dtype": "F32", "shape": [512, 784],
//                 "pieces": [{"file": "rank.0000.safetensors", "offset": [0, 0], "shape": [256, 784]}, …]}, …],
//    "classes": ["cat", "dog"],
//    "order": "12,000 samples, shuffled by seed 1", "train_share": 0.9,
//    "epoch_sums": {"loss": 12.5, "metrics": [30], "finite": true},
//    "metrics": {"loss": 0.31, …},
//    "best": {"loss": {"value": 0.29, "step": 80, "since": 2}, …},
//    "plateau": {"scale": 0.1, "best": 0.29, "validations": 9, "worse": 2, "cooldown": 0},
//    "loss_scale": {"scale": 65536, "finite_steps": 12, "skipped": 3},
//    "checksum": "…"}
//
// `lineage`, `weights_only`, `base`, `classes`, `plateau` and `loss_scale` are optional. `base` has the frozen weights
// that the checkpoint leaves out. The last line is `"checksum": "<32 digits>"}` and a newline: the XXH128 of all bytes
// before that line. Fields that are not known are ignored; a higher `format` is an error. A metric that is not finite
// is a string: "nan", "inf", "-inf".
//
// slot: "weight" (the f32 master, or the only copy), "state" (running statistics), or the optimizer's name of its
// state. The pieces of a tensor tile it: each element is in exactly one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/best_value.h"
#include "engine/base/loss_scale_state.h"
#include "engine/base/plateau_state.h"
#include "engine/graph/dtype.h"
#include "engine/graph/shape.h"
#include "engine/train/checkpoint/tiling.h"

namespace trainctl {

inline constexpr int kManifestFormat = 1;
inline constexpr std::string_view kManifestName = "checkpoint.json";

struct StoredPiece {
  std::string file;
  Box box;
};

struct StoredTensor {
  std::string name, slot;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<StoredPiece> pieces;
};

struct StoredFile {
  std::string name;  ///< in the checkpoint's directory
  int64_t bytes = 0;
  std::string xxh128;  ///< 32 hexadecimal digits
};

/// Frozen weights that are not in a checkpoint, but in the files from which its run started.
struct StoredBase {
  std::string from;         ///< weights.from
  std::string fingerprint;  ///< WeightFiles::fingerprint
  std::vector<std::pair<std::string, Shape>> tensors;

  bool has(std::string_view tensor) const;
};

/// True for a state that describes the last step and not the model, such as the loads of experts. Files of weights and
/// imported checkpoints need not have it: it starts at 0.
bool is_step_statistic(std::string_view tensor);

struct Manifest {
  std::string trainctl;    ///< version that wrote it
  std::string name;        ///< name of the job
  int run = 0;             ///< number of the run
  int attempt = 0;         ///< CheckpointDirectory::claim_attempt
  int64_t step = 0;        ///< number of steps trained in the whole run
  int64_t epoch = 0;       ///< epoch of the next step
  int64_t epoch_step = 0;  ///< steps of that epoch that were trained
  int64_t samples = 0;     ///< samples that were trained on
  uint64_t seed = 0;
  std::string order;                 ///< order_text of the job; empty: an older version wrote it
  std::vector<std::string> classes;  ///< names of the classes of the training set, by number; may be empty
  double train_share = 0;            ///< dataset.split.train; 0: the set was not split, or an older version wrote it
  std::string written;               ///< UTC, ISO 8601
  std::string lineage;               ///< CheckpointOwner; "" if an older version wrote it
  bool weights_only = false;         ///< a run's final weights, without the optimizer's state
  std::optional<StoredBase> base;
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;
  double epoch_loss_sum = 0;                            ///< sum of the losses of the epoch_step steps of the epoch
  std::vector<double> epoch_metric_sums;                ///< the same for each metric of the job
  bool is_finite = true;                                ///< whether all losses of the run so far are finite
  std::vector<std::pair<std::string, double>> metrics;  ///< values of a validation after this step; may be empty
  std::optional<PlateauState> plateau;                  ///< for a learning rate that falls on a plateau
  std::optional<LossScaleState> loss_scale;             ///< precision: fp16
  BestValues best;                                      ///< best of all validations of the run, and of those it resumes

  const StoredTensor* find(std::string_view tensor, std::string_view slot) const;  ///< null if there is none
  /// `tensors`, and the tensors of the base, which have no pieces.
  std::vector<StoredTensor> with_base() const;
};

/// The name of a piece in its file: "layer1.weight:momentum" if it is the whole tensor, else
/// "layer1.weight:momentum[0:256, 0:784]".
std::string piece_key(std::string_view name, std::string_view slot, const Shape& shape, const Box& box);
/// Number of bytes of the key after the tensor's name.
int64_t piece_key_bytes_after_name(std::string_view slot, const Shape& shape, const Box& box);

struct PieceName {
  std::string name, slot;
  std::optional<Box> box;  ///< none: the whole tensor
};
/// The inverse of piece_key. Throws EnvError if the text is not a key.
PieceName parse_piece_key(std::string_view key);

/// The text of checkpoint.json. check(): manifest_defect finds nothing.
std::string to_json(const Manifest& manifest);

/// Checks everything that the text shows, including the tiling. `file` is for messages. Throws EnvError.
Manifest parse_manifest(std::string_view text, const std::string& file);

/// Returns "" if the manifest is sound, otherwise the first defect with its path: "tensors[3] (fc1.weight:weight):
/// element [0, 3] is in 2 pieces". The time is nearly linear in the number of pieces.
std::string manifest_defect(const Manifest& manifest);

/// The checksum at the end of a text that parse_manifest accepts. It identifies this manifest among all others.
std::string_view checksum_of(std::string_view text);

/// Reads `directory`/checkpoint.json. Throws EnvError, also if a file that it names is missing or has another size.
Manifest read_manifest(const std::string& directory);
/// The same for a directory that may lack the files without pieces, such as job.yaml. A host receives only the files
/// that its ranks read.
Manifest read_manifest_of_pieces(const std::string& directory);
/// The files that have pieces of tensors, sorted.
std::vector<std::string> files_with_pieces(const Manifest& manifest);
/// Checks only whether the files exist and have their sizes: "rank.0001.safetensors: has 12 bytes, expected 1,606,000",
/// or "".
std::string files_defect(const Manifest& manifest, const std::string& directory);

}  // namespace trainctl
