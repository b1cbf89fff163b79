//go:build cgo

package codec

import "loaderx/gopkg/codec/libzstd"

var zstd backend = libzstd.Backend{}
