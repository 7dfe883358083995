// Assigns instructions to the parts of a step's time, and names the parts.
#include "engine/estimate/step_parts.h"

namespace trainctl {
namespace {

Part part_of_purpose(Purpose purpose) {
  switch (purpose) {
    case Purpose::gradient:
    case Purpose::clip:
      return Part::gradients;
    case Purpose::weights:
      return Part::weights;
    case Purpose::pipeline:
      return Part::pipeline;
    case Purpose::none:
    case Purpose::redistribute:
    case Purpose::statistics:
    case Purpose::loss:
    case Purpose::layer:
    case Purpose::offload:
    case Purpose::outer:
      return Part::redistribute;
  }
  return Part::redistribute;
}

}  // namespace

std::string_view to_string(Part part) {
  switch (part) {
    case Part::products:
      return "products";
    case Part::other_kernels:
      return "other kernels";
    case Part::redistribute:
      return "redistribution";
    case Part::gradients:
      return "gradient sums";
    case Part::weights:
      return "gathers of weights";
    case Part::pipeline:
      return "sends between stages";
    case Part::data:
      return "data";
    case Part::offload:
      return "copies to and from the host";
    case Part::host:
      return "host between steps";
  }
  return "?";
}

Part part_of(const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kernel:
      return kernel_of(instruction)->is_product ? Part::products : Part::other_kernels;
    case Opcode::collective:
      return part_of_purpose(instruction.purpose);
    case Opcode::send:
    case Opcode::recv:
      return part_of_purpose(instruction.purpose);
    case Opcode::copy:
      return Part::offload;
    case Opcode::load:
    case Opcode::print:
    case Opcode::wait:
      return Part::data;
  }
  return Part::data;
}

}  // namespace trainctl
