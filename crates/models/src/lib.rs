//! firth: models.
