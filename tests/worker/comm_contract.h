// What every implementation of Collectives must do, as one function that each rank runs. Used by
// the threads of comm_contract_test.cc and by the processes of comm_mpi_test.cc, so it asserts
// nothing itself: the answer is the first fact that does not hold.
#pragma once

#include <string>

#include "worker/comm/collectives.h"

namespace swax::test {

class NoStream final : public Stream {};

// Empty: all facts hold on this rank.
std::string collectives_contract(Collectives& c);

}  // namespace swax::test
