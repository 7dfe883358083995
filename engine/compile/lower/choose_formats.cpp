// Chooses which images are stored channels last. Kernels that prefer it (convolutions) would otherwise transpose their
// images themselves, before and after; kernels that do not take it need a transpose before them if their image is
// stored so. Nodes that take it and share images are decided together, by the bytes that either choice moves.
//
// Weights stay as the graph declares them: a kernel reorders its own, which is little next to its images.
#include <algorithm>
#include <numeric>
#include <set>

#include "engine/compile/passes.h"
#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

class FormatChoice {
 public:
  explicit FormatChoice(Compiler& c) : c_(c), graph_(c.graph), group_(graph_.tensors.size()) {
    std::iota(group_.begin(), group_.end(), 0);
    forms_.resize(graph_.nodes.size());
  }

  void choose() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      forms_[n] = form_of(graph_.nodes[n]);
      const std::vector<TensorId> images = images_of(n);
      for (TensorId image : images) join(images[0], image);
    }
    if (std::none_of(forms_.begin(), forms_.end(), [](const auto& form) { return form.has_value(); })) return;
    find_saved_bytes();
    find_moved_bytes();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const std::vector<TensorId> images = images_of(n);
      if (images.empty() || saved_[root(images[0])] <= moved_[root(images[0])]) continue;
      c_.forms[n] = forms_[n];
      for (size_t o = 0; o < graph_.nodes[n].outputs.size(); ++o)
        if (is_image_output(n, o)) c_.formats[graph_.nodes[n].outputs[o]] = Format::channels_last;
    }
  }

 private:
  /// Describes how a node would run on channels-last images; empty if it cannot.
  std::optional<ChannelsLast> form_of(const Node& node) const {
    const OpDef& op = get_op(node.op);
    if (op.kernel.channels_last == nullptr || op.is_view || op.collective) return {};
    if (std::max(node.inputs.size(), node.outputs.size()) > ChannelsLast::kMostOperands) return {};
    std::vector<TensorInfo> inputs;
    for (TensorId t : node.inputs) inputs.push_back({graph_.tensors[t].shape, graph_.tensors[t].dtype});
    const std::optional<ChannelsLast> form = op.kernel.channels_last(inputs, node.attrs);
    if (!form) return {};
    const auto fits = [&](TensorId t) {
      const Tensor& tensor = graph_.tensors[t];
      return tensor.shape.size() == 4 && tensor.kind != TensorKind::parameter && tensor.kind != TensorKind::state;
    };
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (form->has_input(i) && !fits(node.inputs[i])) return {};
    for (size_t o = 0; o < node.outputs.size(); ++o)
      if (form->has_output(o) && !fits(node.outputs[o])) return {};
    return form;
  }

  bool is_image_input(size_t node, size_t i) const { return forms_[node] && forms_[node]->has_input(i); }
  bool is_image_output(size_t node, size_t o) const { return forms_[node] && forms_[node]->has_output(o); }

  std::vector<TensorId> images_of(size_t node) const {
    std::vector<TensorId> images;
    const Node& n = graph_.nodes[node];
    for (size_t i = 0; i < n.inputs.size(); ++i)
      if (is_image_input(node, i)) images.push_back(n.inputs[i]);
    for (size_t o = 0; o < n.outputs.size(); ++o)
      if (is_image_output(node, o)) images.push_back(n.outputs[o]);
    return images;
  }

  size_t root(TensorId tensor) const {
    auto at = static_cast<size_t>(tensor);
    while (group_[at] != at) at = group_[at];
    return at;
  }
  void join(TensorId a, TensorId b) { group_[root(a)] = root(b); }

  /// Read and written once by a transpose.
  int64_t transpose_bytes(TensorId tensor) const {
    const Tensor& t = graph_.tensors[tensor];
    return same_in_both_formats(t.shape, Format::declared) ? 0 : 2 * num_elements(t.shape) * byte_size(t.dtype);
  }

  void find_saved_bytes() {
    saved_.assign(graph_.tensors.size(), 0);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (!get_op(graph_.nodes[n].op).kernel.prefers_channels_last) continue;
      for (TensorId image : images_of(n)) saved_[root(image)] += transpose_bytes(image);
    }
  }

  /// An image is transposed once for all its readers.
  void find_moved_bytes() {
    moved_.assign(graph_.tensors.size(), 0);
    std::set<TensorId> made_last, read_last, read_as_declared(graph_.prints.begin(), graph_.prints.end());
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      for (size_t i = 0; i < node.inputs.size(); ++i)
        (is_image_input(n, i) ? read_last : read_as_declared).insert(node.inputs[i]);
      for (size_t o = 0; o < node.outputs.size(); ++o)
        if (is_image_output(n, o)) made_last.insert(node.outputs[o]);
    }
    for (TensorId image : made_last)
      if (read_as_declared.contains(image)) moved_[root(image)] += transpose_bytes(image);
    for (TensorId image : read_last)
      if (!made_last.contains(image)) moved_[root(image)] += transpose_bytes(image);
  }

  Compiler& c_;
  const Graph& graph_;
  std::vector<std::optional<ChannelsLast>> forms_;  ///< by node
  std::vector<size_t> group_;                       ///< by tensor: towards the root of those decided together
  std::vector<int64_t> saved_, moved_;              ///< by root
};

}  // namespace

void choose_formats(Compiler& c) { FormatChoice(c).choose(); }

}  // namespace trainctl
