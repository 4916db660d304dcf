// Every way a collective can fail, told apart by type. Messages are whole sentences for the user.
#pragma once

#include <stdexcept>
#include <string>

namespace plough {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct TimedOut : Error {  // a peer did not come in time
  using Error::Error;
};
struct PeerLost : Error {  // a peer died or left
  using Error::Error;
};
struct Mismatch : Error {  // ranks called different things
  using Error::Error;
};
struct Unsupported : Error {  // asked for what cannot be
  using Error::Error;
};
struct Broken : Error {  // the group failed before; says how
  using Error::Error;
};

}  // namespace plough
