// Command pulumi-resource-gcp is Google's own Terraform provider behind Pulumi's bridge, standing
// in for the official pulumi-gcp plugin where that cannot be downloaded.
package main

import (
	"context"
	"os"

	pf "github.com/pulumi/pulumi-terraform-bridge/v3/pkg/pf/tfbridge"
)

// version is set by the linker to the version of the Python package pulumi-gcp.
var version = "0.0.0-dev"

func main() {
	ctx := context.Background()
	info := providerInfo(ctx, version)
	if len(os.Args) == 2 && os.Args[1] == "-property-names" {
		printPropertyNames(info)
		return
	}
	// The bridge insists on a schema, which only generators of SDKs ask for; Python has its SDK.
	schema := []byte(`{"name": "` + packageName + `", "version": "` + version + `"}`)
	pf.MainWithMuxer(ctx, packageName, info, schema)
}
