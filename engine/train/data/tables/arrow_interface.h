// The functions of libtrainctl_arrow.so, which tools/arrow_shim builds against Arrow C++ (./bootstrap arrow), and the
// structures of Arrow's C data interface (https://arrow.apache.org/docs/format/CDataInterface.html), in which data pass
// between it and this program. No type of Arrow C++ is part of this interface.
#pragma once

#include <cstdint>

extern "C" {

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE
#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema** children;
  struct ArrowSchema* dictionary;
  void (*release)(struct ArrowSchema*);
  void* private_data;
};
struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  struct ArrowArray** children;
  struct ArrowArray* dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};
#endif

/// Receives the text of an error, cut to `bytes` with the final zero.
struct TrainctlArrowError {
  char* text;
  int64_t bytes;
};

/// The bytes of a file: `data`, or, where it is null, a function that reads them. Both must outlive the file.
struct TrainctlArrowBytes {
  const uint8_t* data;
  int64_t size;
  void* state;  ///< for the functions
  /// Any number of threads may call it. Returns 0 on success.
  int (*read)(void* state, int64_t at, int64_t bytes, uint8_t* to, struct TrainctlArrowError error);
  /// Starts reading in the background.
  void (*expect)(void* state, int64_t at, int64_t bytes);
};

enum TrainctlArrowForm { kArrowParquet = 0, kArrowIpcFile = 1, kArrowIpcStream = 2 };

/// Functions that return a pointer return null on failure, functions that return int return 0 on success.
struct TrainctlArrow {
  int32_t version;
  /// The version of Arrow: "26.0.1".
  const char* arrow_version;
  /// Opens Parquet, Arrow's file format (Feather) or its stream format. `most_bytes`: no more memory is allocated for
  /// decoded data.
  void* (*open)(const struct TrainctlArrowBytes* bytes, int64_t most_bytes, struct TrainctlArrowError error);
  void (*close)(void* file);
  /// Groups are row groups, or record batches.
  int64_t (*groups)(void* file);
  int64_t (*group_rows)(void* file, int64_t group);
  int (*schema)(void* file, struct ArrowSchema* out, struct TrainctlArrowError error);
  /// Reads some columns of a group. Any number of threads may call it. `decoded_bytes`: memory that the result holds.
  int (*read)(void* file, int64_t group, const int32_t* columns, int32_t count, struct ArrowArray* out,
              int64_t* decoded_bytes, struct TrainctlArrowError error);
  /// Starts reading the bytes of some columns of a group, if they come from a function. Any number of threads may call
  /// it.
  void (*expect)(void* file, int64_t group, const int32_t* columns, int32_t count);
  /// Creates a Parquet file (zstd), or one in Arrow's file or stream format. Takes over the schema.
  void* (*create)(const char* path, enum TrainctlArrowForm form, struct ArrowSchema* schema,
                  struct TrainctlArrowError error);
  /// Appends a batch, which becomes a row group, and takes it over.
  int (*write)(void* writer, struct ArrowArray* batch, struct TrainctlArrowError error);
  /// Completes the file and frees the writer, also on failure.
  int (*finish)(void* writer, struct TrainctlArrowError error);
};

}  // extern "C"

namespace trainctl {
inline constexpr int32_t kArrowShimVersion = 2;
inline constexpr const char* kArrowShimSymbol = "trainctl_arrow";
inline constexpr const char* kArrowShimName = "libtrainctl_arrow.so";
}  // namespace trainctl
