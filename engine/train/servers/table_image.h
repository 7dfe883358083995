// The part of a checkpoint that a server saves of its tables: one safetensors file of the rows that it has made. Any
// number of servers resumes from it: each takes the rows that it owns.
//
//   emb.deep.weight:ids.1      in the order in which the rows were made; checkpoint/table_slot.h has all slots
//   emb.deep.weight:weight.1
//
// Between two saves of all rows it saves those that have changed, as `ids.1.changed`, `weight.1.changed`: the writer
// stores them next to a link to the file of all rows.
//
// A row that is not there has its initial values. A table without rows on a server has no tensors of that server.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/train/checkpoint/piece_reader.h"
#include "engine/train/servers/table_rows.h"

namespace trainctl::servers {

/// Shared memory for the image: a memfd that launcher, server and writer have open. Each save resizes it.
class TableImage {
 public:
  /// Takes ownership of `fd`. `weights_only`: without the optimizer's states.
  TableImage(int fd, int server, bool weights_only = false);
  ~TableImage();
  TableImage(const TableImage&) = delete;
  TableImage& operator=(const TableImage&) = delete;

  /// All rows, or, if `may_save_changes`, and they are fewer than half, those that have changed since all were written.
  /// Empty if there are none. EnvError if there is not enough memory.
  void write(std::span<const std::unique_ptr<TableRows>> tables, bool may_save_changes = false);

 private:
  std::vector<std::string> slots_of(const TableRows& rows) const;
  bool changes_are_enough(std::span<const std::unique_ptr<TableRows>> tables) const;

  int fd_;
  const int server_;
  const bool weights_only_;
  bool has_written_all_ = false;
};

/// Fills `rows`, those of server `server` of `servers`, from what all servers saved, or from the whole table of a job
/// without servers. What is not there, or has another size, keeps its initial values. EnvError if a row's number is
/// not in the table.
void restore_rows(PieceReader& reader, int server, int servers, TableRows& rows);

}  // namespace trainctl::servers
