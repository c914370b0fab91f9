//! Tests across the workspace: floors, interoperability, programs.
