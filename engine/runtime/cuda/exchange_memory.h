// Holds the exchanges of a recorded or replayed step on the device while the step runs, so that communication does not
// wait for the bus, which the copies of the state occupy:
//
//   recorded step   given ─► device, received ─► device   then device ─► tape
//   replayed step   tape ─► device                        then received is read, given_again ─► device ─► tape
//
// A device without room for them accesses the tape in the memory of the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/runtime/cuda/handles.h"
#include "engine/runtime/step_tape.h"

namespace trainctl::cuda {

class ExchangeMemory {
 public:
  enum class Use { record, replay };

  /// The tape must outlive it.
  ExchangeMemory(const StepTape& tape, Use use);
  ~ExchangeMemory();
  ExchangeMemory(const ExchangeMemory&) = delete;
  ExchangeMemory& operator=(const ExchangeMemory&) = delete;

  const StepTape& tape() const { return tape_; }
  /// The memory of an offset of the tape's exchanges, for the kernels and copies of the step.
  std::byte* at(int64_t offset) const;

  /// replay: the next step receives what the tape has. Returns when the device has it.
  void load();
  /// After the work of `compute` so far, which ends the step: copies what the step gave, and what it received if it was
  /// recorded, to the tape.
  void save(cudaStream_t compute);
  /// Returns whether the last save is complete; with `wait` once it is.
  bool is_saved(bool wait) const;

 private:
  void copy(int64_t first, int64_t end, bool to_device);

  const StepTape& tape_;
  int64_t received_ = 0, given_again_ = 0;  ///< the first bytes of these parts of the exchanges
  const int64_t first_, end_;               ///< the bytes of the exchanges that this step uses
  const bool replays_;
  DeviceMemory aside_;
  Stream stream_;
  Event ready_, done_;
};

}  // namespace trainctl::cuda
