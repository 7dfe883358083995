// Places the samples of a batch: computes the parts of a block that a rank's `load` instructions fill.
//
//   batch rows   0 . . . . . . . B-1        micro-batch m is rows [m * n, (m + 1) * n)
//   part             ######                 the rows of one load's slice, of one tensor
//
// A sample is read once for all parts that hold its row. Rows are independent, so that any worker may write any row.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/compile/program.h"
#include "engine/ops/row_order.h"
#include "engine/runtime/executor.h"
#include "engine/train/data/batch_mixing.h"
#include "engine/train/data/dataset.h"

namespace trainctl {

struct BatchLayoutOptions {
  int micro_batches = 1;
  bool full_batch = false;  ///< read every row of a micro-batch, then slice, instead of only this rank's rows
  const BatchMixing* mixing = nullptr;  ///< mixup and cutmix; must outlive the layout
  /// Label of rows that only fill a batch up: i32 labels have this value, f32 ones nan.
  std::optional<int32_t> no_label;
  std::vector<std::string> labels = {"label"};  ///< the sample fields that are labels
  /// parallel.local_steps: the program's batch is this part of the rows of the batch.
  int replica = 0, replicas = 1;
};

class BatchLayout {
 public:
  /// A worker's own scratch memory.
  struct Scratch {
    ReadState state;
    std::vector<std::vector<std::byte>> fields;  ///< fields of one sample
    std::vector<void*> to;                       ///< where each field is read to
    std::vector<int32_t> labels;                 ///< labels of one sample, to be counted; room for any field
    std::vector<float> mixed;                    ///< mixed values of one sample; room for any field
    std::vector<std::byte> ordered;              ///< rows of one field in the order of documents
  };

  BatchLayout(const Dataset& set, int64_t batch, const Program& program, const InputLayout& layout,
              const BatchLayoutOptions& options);

  /// The rows of the batch that this rank reads, ascending.
  std::span<const int64_t> rows() const { return rows_; }
  /// Bytes that a batch needs in addition to its block until finish().
  int64_t staging_bytes() const { return staging_bytes_; }
  /// Bytes of one sample with all its fields, as it is read.
  int64_t sample_bytes() const;
  Scratch make_scratch() const;

  /// Writes sample numbers, for tensors whose samples are all kept on the device.
  void write_numbers(std::span<const int64_t> samples, std::byte* block) const;
  /// Reads one row's sample to all its places. `is_own`: the row does not just fill up the batch.
  void read_row(int64_t row, int64_t sample, bool is_own, Scratch& scratch, std::byte* staging, std::byte* block) const;
  /// Once all rows are read: mixes them, and cuts slices of other dims out of whole samples.
  void finish(const std::optional<BatchMixing::Drawn>& mix, Scratch& scratch, std::byte* staging,
              std::byte* block) const;

 private:
  /// direct: the rows as they are, or as bytes that the device maps. converted: whole samples of another type. sliced:
  /// parts of samples, staged in the load's type and cut in finish().
  enum class Way : uint8_t { by_number, direct, converted, sliced };

  /// One `load` (or several of the same data), and how to fill it from the set's samples.
  struct Part {
    const Instruction* load = nullptr;
    int64_t offset = 0;   ///< offset in the block
    int64_t staging = 0;  ///< sliced part: offset in the batch's staging memory
    size_t field = 0;     ///< index of the field in the set
    Way way = Way::direct;
    int64_t sample_elements = 1;
    int64_t first_row = 0, rows = 0;  ///< rows of the batch
    int64_t first_element = 0;        ///< first element of first_row, in the operand's whole tensor
    bool as_bytes = false;            ///< whether the set's u8 are written
    DType dtype() const { return load->outputs[0].dtype; }
    int64_t element_bytes() const { return as_bytes ? 1 : byte_size(dtype()); }
    bool is_mixed = false;  ///< its samples are staged whole, and mixed in finish()
    bool has(int64_t row) const { return row >= first_row && row < first_row + rows; }
  };

  /// Ranks share the rows of a field: `documents_order_` is the order of its documents.
  void find_documents();
  void order_documents(Scratch& scratch) const;
  Part make_part(const Instruction& load, bool by_number, bool as_bytes, int64_t batch) const;
  void find_rows();
  /// The destination of a row of the field: its place in a direct part, or the scratch. Null: no part needs it.
  void* target(size_t field, int64_t row, Scratch& scratch, std::byte* staging, std::byte* block) const;
  /// `no_label`: the row has no label, and this field is it.
  void spread(size_t field, int64_t row, const void* from, bool no_label, std::byte* staging, std::byte* block) const;
  /// The buffer in which the sample of a row waits for the others: the mixed field, then the label.
  std::byte* mixed_sample(size_t field, int64_t row, std::byte* staging) const;
  void mix_rows(const Part& part, const std::optional<BatchMixing::Drawn>& mix, Scratch& scratch, std::byte* staging,
                std::byte* block) const;
  void mark_no_label(const Part& part, std::byte* label) const;

  const Dataset& set_;
  BatchLayoutOptions options_;
  std::vector<Part> parts_;
  std::vector<int64_t> rows_;
  int64_t batch_ = 0;
  int64_t staging_bytes_ = 0;
  int64_t mixed_samples_ = 0;  ///< in the staging memory: those of rows_
  int documents_ = -1;         ///< the field whose documents are put in another order; -1: none
  RowOrder documents_order_;
  std::vector<size_t> ordered_fields_;  ///< fields with the same rows, in addition to documents_
};

}  // namespace trainctl
