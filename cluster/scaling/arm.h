// An arm of a study: one way to attend, compared with the others on equal input. `sparse` is the policy hils; ring,
// pass-q, all-gather, ulysses and ring-ulysses are dense attention with that merge; any policy of `ringmark policies`
// is an arm under its own name.
#pragma once

#include <string>
#include <vector>

namespace ringmark::cluster {

// Throws Error(kBadInput) naming the arm when there is none of that name.
void check_arm(const std::string& name);

// Options of `prefill` that make it this arm, with those of `shared` that its policy understands: an option of
// another policy's own (--topk of a ring) and, for a dense arm, of single blocks (--transport) is left out. `shared`
// are pairs of --name and value or single switches, as on a command line.
std::vector<std::string> arm_options(const std::string& name, const std::vector<std::string>& shared);

// Throws Error(kBadInput) when `shared` holds what the study itself decides (--planted, --json, --policy, ...), or
// anything that is no flag.
void check_shared_options(const std::vector<std::string>& shared);

}  // namespace ringmark::cluster
