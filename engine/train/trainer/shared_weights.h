// Weights that pass from the programs of a training to those of a text generation, whose plan cuts them differently.
// The ranks of a host share memory with room for each whole tensor:
//
//   training     each rank writes the elements that checkpoints take from it: together they are each tensor once
//   all ranks    wait until all have written
//   generation   each rank reads its parts
//
// Tensors that the training does not change are passed once. Pages take memory when first touched.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "engine/planning/planned_job.h"
#include "engine/runtime/communicator.h"
#include "engine/runtime/executor.h"

namespace trainctl {

class SharedWeights {
 public:
  /// `training`: the job that trains; must outlive it. `fd`: an empty file in memory that all ranks have; -1: for one
  /// rank. It stays the caller's. Throws EnvError if there is no memory.
  SharedWeights(const PlannedJob& training, int fd);
  ~SharedWeights();
  SharedWeights(const SharedWeights&) = delete;
  SharedWeights& operator=(const SharedWeights&) = delete;

  /// Bytes of the memory for a job, at most: in f32.
  static int64_t bytes(const PlannedJob& training);

  /// All ranks call it. No step may be unfinished. `from` runs `trained` and `to` runs `generating`; `comm` has the
  /// routes of routes_of_generation().
  void pass(const Program& trained, Executor& from, const Program& generating, Executor& to, Communicator& comm);

 private:
  struct Tensor {
    int64_t offset = 0;  ///< offset of its elements, with room for f32
    size_t number = 0;   ///< index of its type in the table at the start of the memory
    Shape shape;
    bool changes = false;
  };
  const Tensor* find(const std::string& name) const;
  void write(const Program& program, Executor& from);
  void read(const Program& program, Executor& to) const;
  uint8_t* type_of(const Tensor& tensor) const;

  std::map<std::string, Tensor> tensors_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  bool has_passed_ = false;
};

}  // namespace trainctl
