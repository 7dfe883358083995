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
  /// Label of the rows that only fill up a batch: i32 labels have this value, f32 labels are nan.
  std::optional<int32_t> no_label;
  std::vector<std::string> labels = {"label"};  ///< the sample fields that are labels
  /// With parallel.local_steps, the program's batch is part `replica` of `replicas` equal parts of the batch's rows.
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

  /// Writes sample numbers in place of data, for tensors whose samples are all kept on the device.
  void write_numbers(std::span<const int64_t> samples, std::byte* block) const;
  /// Reads the sample of one row to all its places in the block. `is_own` is false for rows that only fill up the
  /// batch.
  void read_row(int64_t row, int64_t sample, bool is_own, Scratch& scratch, std::byte* staging, std::byte* block) const;
  /// Called once all rows are read: mixes rows (mixup, cutmix), and cuts the parts of samples out of samples that were
  /// read whole.
  void finish(const std::optional<BatchMixing::Drawn>& mix, Scratch& scratch, std::byte* staging,
              std::byte* block) const;

 private:
  /// The ways in which the data of a load get into the block. by_number: only sample numbers are written. direct: rows
  /// are copied as they are, or as bytes that the device maps. converted: whole samples are converted to another type.
  /// sliced: whole samples are staged in the load's type, and finish() cuts the parts out of them.
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

  /// Used if ranks share the rows of a field: sets `documents_order_`, the order of the field's documents.
  void find_documents();
  void order_documents(Scratch& scratch) const;
  Part make_part(const Instruction& load, bool by_number, bool as_bytes, int64_t batch) const;
  void find_rows();
  /// The destination of a row of the field: its place in a direct part, or the scratch. Null: no part needs it.
  void* target(size_t field, int64_t row, Scratch& scratch, std::byte* staging, std::byte* block) const;
  /// Copies a row of the field from `from` to all parts that need it. `no_label`: the field is the label, and the row
  /// has none.
  void spread(size_t field, int64_t row, const void* from, bool no_label, std::byte* staging, std::byte* block) const;
  /// The staging buffer in which the sample of a row waits until all rows to be mixed are read: first the mixed field,
  /// then the label.
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
